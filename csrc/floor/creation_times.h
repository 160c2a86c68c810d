// The least possible time of an operation: what it takes to create the objects of its result.
#pragma once

#include <vector>

#include "py/object.h"

namespace fxpress::floor {

// Seconds, for each repeat, that it takes to create the modules' graphs again, and the modules
// around them, when everything about them is known: benchmarks hold an operation with these results
// against it.
std::vector<double> creation_times(const std::vector<pybind11::object>& modules, size_t repeats);

// The times of modules that run their graph themselves: a Graph and an nn.Module each. Modules
// without a graph are left out.
std::vector<double> plain_creation_times(const std::vector<pybind11::object>& all, size_t repeats);

}  // namespace fxpress::floor
