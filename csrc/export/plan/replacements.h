// Computes the order of a node's users after placeholders were replaced.
#pragma once

#include <algorithm>
#include <span>
#include <vector>

#include "core/graph.h"

namespace fxpress::exporting {

using core::NodeId;

// Node.replace_all_uses_with sets the arguments of each user again, which moves the user to the end
// of Node.users of all its inputs. This function numbers the moves that occur if the nodes in
// `replaced` are replaced in order. Returns for each node the number of its last move, or 0.
// Node.users is then sorted by these numbers; users with number 0 come first, in graph order.
//
// Requires graph.link_users().
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
