// Computes the order of users after placeholders were replaced.
#pragma once

#include <algorithm>
#include <span>
#include <vector>

#include "core/graph.h"

namespace fxpress::exporting {

using core::NodeId;

// Node.replace_all_uses_with sets the arguments of each user again, which moves the user to the end
// of the tables of all its inputs. Returns, by node, the number of the node's last move when the
// nodes of `replaced` are replaced in order; 0: the node did not move. A table of users is in the
// order of these numbers, and in graph order for equal numbers.
//
// Requires that the users of `graph` are linked.
inline std::vector<uint32_t> last_moves(const core::Graph& graph,
                                        std::span<const NodeId> replaced) {
  std::vector<uint32_t> moves(graph.size(), 0);
  uint32_t count = 0;
  std::vector<NodeId> users;
  for (NodeId input : replaced) {
    const auto linked = graph.users_of(input);
    users.assign(linked.begin(), linked.end());
    std::stable_sort(users.begin(), users.end(),
                     [&](NodeId a, NodeId b) { return moves[a.value()] < moves[b.value()]; });
    for (NodeId user : users) moves[user.value()] = ++count;
  }
  return moves;
}

}  // namespace fxpress::exporting
