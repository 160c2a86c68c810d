// The engine's functions for Python.
#pragma once

#include <pybind11/pybind11.h>

namespace fxpress::engine {

void bind(pybind11::module_& extension);

}  // namespace fxpress::engine
