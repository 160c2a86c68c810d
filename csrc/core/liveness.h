// Finds the last use of each value.
#pragma once

#include <vector>

#include "core/graph.h"

namespace fxpress::core {

// The values that die at each node: dead[begin[i] .. begin[i + 1]) may be freed after node i.
struct LastUses {
  std::vector<uint32_t> begin;  // by node, one more at the end
  std::vector<NodeId> dead;     // in the order of the node's inputs
};

// A value dies at its last user in graph order. Values without users are not listed.
LastUses last_uses(const Graph& graph);

}  // namespace fxpress::core
