// A list of bindings for each room of _aten_ext.
#pragma once

#include <pybind11/pybind11.h>

namespace fxpress::aten {

void bind_engine(pybind11::module_& module);
void bind_tensor(pybind11::module_& module);

}  // namespace fxpress::aten
