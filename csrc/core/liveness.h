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
inline LastUses last_uses(const Graph& graph) {
  const size_t n = graph.size();
  std::vector<uint32_t> last_user(n, 0xffffffffu);
  for (uint32_t user = 0; user < n; ++user) {
    for (NodeId def : graph.inputs_of(NodeId(user))) last_user[def.value()] = user;
  }
  LastUses result;
  result.begin.reserve(n + 1);
  result.begin.push_back(0);
  for (uint32_t user = 0; user < n; ++user) {
    for (NodeId def : graph.inputs_of(NodeId(user))) {
      if (last_user[def.value()] != user) continue;
      result.dead.push_back(def);
      last_user[def.value()] = 0xffffffffu;  // listed once, however often the node mentions it
    }
    result.begin.push_back(static_cast<uint32_t>(result.dead.size()));
  }
  return result;
}

}  // namespace fxpress::core
