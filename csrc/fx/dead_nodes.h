// Nodes without effect or user.
#pragma once

#include <cstdint>
#include <vector>

#include "fx/reader.h"

namespace fxpress::fx {

// By node: 1 for those that torch.fx.Graph.eliminate_dead_code would erase. Asks `Node.is_impure`.
std::vector<uint8_t> find_dead_nodes(const ReadGraph& source);

}  // namespace fxpress::fx
