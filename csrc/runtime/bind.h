// The engine's functions for Python.
#pragma once

#include <pybind11/pybind11.h>

namespace fxpress::runtime {

void bind(pybind11::module_& extension);

}  // namespace fxpress::runtime
