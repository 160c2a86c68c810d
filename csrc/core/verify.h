// Invariants of the flat graph, checked in tests, and in debug builds by the reader.
#pragma once

#include <string>

#include "core/graph.h"

namespace fxpress::core {

// Returns an empty string when every invariant holds, else one sentence that names the first node
// that breaks one. Checked: array lengths, monotonic ranges, every input a node of the graph, users
// (when linked) the exact inverse of the inputs. The order of the nodes is not checked: a caller's
// graph may have any, and a function that needs a topological order says so to its caller.
std::string verify(const Graph& graph);

}  // namespace fxpress::core
