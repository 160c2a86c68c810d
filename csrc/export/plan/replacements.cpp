#include "export/plan/replacements.h"

#include <algorithm>

namespace fxpress::exporting {

using core::NodeId;

std::vector<uint32_t> last_moves(const core::Graph& graph, std::span<const NodeId> replaced) {
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
