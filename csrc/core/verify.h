// Invariants of the flat graph, checked in tests, and in debug builds by the reader.
#pragma once

#include <string>

#include "core/graph.h"

namespace fxpress::core {

// An empty string when every invariant holds, else one sentence that names the first node that
// breaks one. Checked: array lengths, monotonic ranges, every input a node of the graph, users
// (when linked) the exact inverse of the inputs. Not the order of the nodes: a caller's graph may
// have them in any, and whoever needs a topological one says so to the caller.
std::string verify(const Graph& graph);

}  // namespace fxpress::core
