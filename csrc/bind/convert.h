// Small helpers of the bindings.
#pragma once

#include <pybind11/pybind11.h>

#include "fx/py.h"

namespace fxpress::bind {

namespace py = pybind11;

inline py::object to_object(fx::Ref ref) {
  return py::reinterpret_steal<py::object>(ref.release());
}

void bind_archive(py::module_& module);
void bind_capture(py::module_& module);
void bind_expressions(py::module_& module);
void bind_graphs(py::module_& module);
void bind_serde(py::module_& module);
void bind_split(py::module_& module);
void bind_tracking(py::module_& module);
void bind_unflatten(py::module_& module);

}  // namespace fxpress::bind
