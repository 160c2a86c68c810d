// Finds the values that may share memory with inputs of the graph that are written later.
#pragma once

#include <functional>
#include <vector>

#include "core/graph.h"

namespace fxpress::unflatten {

using core::Graph;
using core::NodeId;

// Finds, for each node, the `roots` (nodes of the graph) that its value may share memory with, in
// graph order; a root is among its own. `may_alias(node)`: a result of the node may be, or view,
// one of its inputs; it is asked only about nodes with such inputs.
std::vector<std::vector<NodeId>> find_aliases(const Graph& graph, const std::vector<NodeId>& roots,
                                              const std::function<bool(NodeId)>& may_alias);

}  // namespace fxpress::unflatten
