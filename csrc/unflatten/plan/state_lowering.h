// Moves state from the arguments of module calls into the modules: placeholders for parameters,
// buffers and constants become get_attr nodes of the module that has them.
#pragma once

#include "unflatten/plan/outline.h"

namespace fxpress::unflatten {

using core::StringId;
using core::StringPool;

// `targets`: by flat node, the dotted names under which the state of that placeholder is found;
// empty for everything else. A module takes the first target that lies below its own path; where
// none does, an outer module will have it.
void lower_state(Outline& outline, ModuleTree& tree, StringPool& strings,
                 const std::vector<std::vector<StringId>>& targets);

}  // namespace fxpress::unflatten
