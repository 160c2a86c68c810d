// Converts results of the components to pybind11 objects.
#pragma once

#include <pybind11/pybind11.h>

#include <span>

#include "py/object.h"

namespace fxpress::cpython {

inline pybind11::object to_object(Ref ref) {
  return pybind11::reinterpret_steal<pybind11::object>(ref.release());
}

// Returns `object`, or None if it is null.
inline pybind11::object borrow_or_none(PyObject* object) {
  return pybind11::reinterpret_borrow<pybind11::object>(object == nullptr ? Py_None : object);
}

// Returns a tuple of str with these texts.
inline pybind11::tuple texts(std::span<const char* const> names) {
  pybind11::tuple result(names.size());
  for (size_t i = 0; i < names.size(); ++i) result[i] = pybind11::str(names[i]);
  return result;
}

}  // namespace fxpress::cpython
