// Invariants of the flat graph, checked in tests and by whoever builds one.
#pragma once

#include <string>

#include "core/graph.h"

namespace fxpress::core {

// An empty string when every invariant holds, else one sentence that names the first node that
// breaks one. Checked: array lengths, monotonic ranges, every input defined before its user, one
// output at most and nothing after it, users (when linked) the exact inverse of the inputs.
std::string verify(const Graph& graph);

}  // namespace fxpress::core
