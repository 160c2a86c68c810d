// The order in which the users of a value stand in its table after inputs were replaced.
#pragma once

#include <span>
#include <vector>

#include "core/graph.h"

namespace fxpress::exporting {

// Node.replace_all_uses_with gives each user its arguments anew: the user leaves the tables of all
// its inputs and comes back behind the others. Returns, by node, the number of its last such move
// when the nodes of `replaced` are replaced in this order; 0: it never moved. The users of a value
// stand in the order of these numbers, those that are equal in the order of the graph.
//
// The users of `graph` are linked.
std::vector<uint32_t> last_moves(const core::Graph& graph, std::span<const core::NodeId> replaced);

}  // namespace fxpress::exporting
