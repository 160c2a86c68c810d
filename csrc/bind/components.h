// Declares a function for each component that adds the component's bindings to a module.
#pragma once

#include <pybind11/pybind11.h>
#include <pybind11/type_caster_pyobject_ptr.h>

#include <span>

#include "py/object.h"

namespace fxpress::bind {

namespace py = pybind11;
using namespace py::literals;

// An extra argument of def() for a method whose result refers to `self`. In pybind11 3.1,
// py::keep_alive would terminate the process if arguments have wrong types.
struct RefersToSelf {};

// Returns a tuple of str with these texts.
inline py::tuple texts(std::span<const char* const> names) {
  py::tuple result(names.size());
  for (size_t i = 0; i < names.size(); ++i) result[i] = py::str(names[i]);
  return result;
}

void bind_archive(py::module_& module);
void bind_budget(py::module_& module);
void bind_capture(py::module_& module);
void bind_captured_graphs(py::module_& module);
void bind_decompose(py::module_& module);
void bind_documents(py::module_& module);  // the serializer's functions that do not need torch
void bind_export(py::module_& module);
void bind_graphs(py::module_& module);
void bind_process(py::module_& module);
void bind_serde(py::module_& module);
void bind_split(py::module_& module);
void bind_tracking(py::module_& module);
void bind_unflatten(py::module_& module);

}  // namespace fxpress::bind

namespace pybind11::detail {

// Converts results of bound functions: a Ref to its object, and an empty Ref to None.
template <>
struct type_caster<fxpress::Ref> {
  PYBIND11_TYPE_CASTER(fxpress::Ref, const_name("object"));

  bool load(handle source, bool) {
    value = fxpress::Ref::borrow(source.ptr());
    return true;
  }
  static handle cast(fxpress::Ref object, return_value_policy, handle) {
    return object ? handle(object.release()) : none().release();
  }
};

template <>
struct process_attribute<fxpress::bind::RefersToSelf>
    : process_attribute_default<fxpress::bind::RefersToSelf> {
  static void precall(function_call&) {}
  static void postcall(function_call& call, handle result) {
    if (result.ptr() != PYBIND11_TRY_NEXT_OVERLOAD) keep_alive_impl(0, 1, call, result);
  }
};

}  // namespace pybind11::detail
