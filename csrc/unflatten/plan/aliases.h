// Finds the values that may share memory with certain nodes.
#pragma once

#include <algorithm>
#include <functional>
#include <iterator>
#include <vector>

#include "core/graph.h"

namespace fxpress::unflatten {

using core::Graph;
using core::NodeId;

// Returns for each node the `roots` with which its value may share memory, in graph order. A root
// shares memory with itself. `may_alias(node)`: whether a result of the node may be an input or a
// view of an input. It is called only for nodes with an input that shares memory with a root.
inline std::vector<std::vector<NodeId>> find_aliases(const Graph& graph,
                                                     const std::vector<NodeId>& roots,
                                                     const std::function<bool(NodeId)>& may_alias) {
  std::vector<std::vector<NodeId>> result(graph.size());
  for (NodeId root : roots) result[root.value()] = {root};
  std::vector<NodeId> both;
  for (uint32_t i = 0; i < graph.size(); ++i) {
    const auto inputs = graph.inputs_of(NodeId(i));
    const bool reads = std::any_of(inputs.begin(), inputs.end(),
                                   [&](NodeId def) { return !result[def.value()].empty(); });
    if (!reads || !may_alias(NodeId(i))) continue;
    for (NodeId def : inputs) {
      both.clear();
      std::set_union(result[i].begin(), result[i].end(), result[def.value()].begin(),
                     result[def.value()].end(), std::back_inserter(both));
      result[i] = both;
    }
  }
  return result;
}

}  // namespace fxpress::unflatten
