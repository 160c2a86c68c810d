// Nodes that no stack of modules is known of, as a pass that adds nodes may leave them.
#pragma once

#include <functional>
#include <vector>

#include "core/graph.h"
#include "unflatten/plan/module_calls.h"

namespace fxpress::unflatten {

using core::Graph;
using core::NodeId;

// A node without a stack gets that of its users, when all of them were traced in one call of one
// module; others stay without. `is_remade`: the node is made where it is used, and needs no stack.
void adopt_stacks(const Graph& graph, std::vector<StackId>& stacks,
                  const std::function<bool(NodeId)>& is_remade);

}  // namespace fxpress::unflatten
