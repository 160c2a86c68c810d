// Arranges the calls of an outline as modules: it merges equal calls, gives repeated preserved ones
// a dispatcher, and puts all into the order of the original module tree.
#pragma once

#include <functional>
#include <unordered_map>
#include <vector>

#include "unflatten/plan/outline.h"

namespace fxpress::unflatten {

using core::FrameId;
using core::ModuleId;
using core::StringId;
using core::StringPool;

using SameGraph = std::function<bool(FrameId, FrameId)>;

// Call names of merged calls -> the call names that took their place.
using Redirects = std::unordered_map<uint32_t, StringId>;

// Calls of one module object whose graphs are the same become one module: under the same path the
// later call calls the earlier module, under another path that path names the earlier module.
Redirects merge_calls(Outline& outline, ModuleTree& tree, StringPool& strings,
                      const SameGraph& same_graph);

// Calls that had to leave their place to a call of the same graph are merged with it. The others
// stay where they are.
void merge_displaced(Outline& outline, ModuleTree& tree, StringPool& strings,
                     const SameGraph& same_graph);

// A module whose calls differ, under one name: each call goes to the next of `calls`.
struct Dispatcher {
  ModuleId module;              // its place in the tree
  StringId path;                // of the module
  std::vector<ModuleId> calls;  // in order; may repeat
};

// `preserved`: the call names that have a signature. Calls of dispatched modules lose their number.
std::vector<Dispatcher> dispatch_calls(Outline& outline, ModuleTree& tree, StringPool& strings,
                                       std::span<const StringId> preserved,
                                       const Redirects& redirects);

// Modules in the order of `paths`, then of their first appearance; a path without a module gets an
// empty one.
void arrange_modules(Outline& outline, ModuleTree& tree, StringPool& strings,
                     std::span<const StringId> paths);

}  // namespace fxpress::unflatten
