// Defines closed classes, whose instances can be created only by calling the class.
#pragma once

#include <pybind11/pybind11.h>

#include <span>

#include "py/object.h"

namespace fxpress::bind {

// Implements calls of a closed class: creates an object and runs its constructor.
inline PyObject* call_closed_class(PyObject* cls, PyObject* args, PyObject* kwargs) {
  auto* type = reinterpret_cast<PyTypeObject*>(cls);
  PyObject* self = pybind11::detail::make_new_instance(type);
  if (self == nullptr) return nullptr;
  if (type->tp_init(self, args, kwargs) == 0) return self;
  Py_DECREF(self);
  return nullptr;
}

// Returns the metaclass of closed classes, as a borrowed reference.
inline PyObject* closed_metaclass() {
  static PyType_Slot slots[] = {
      {Py_tp_call, reinterpret_cast<void*>(call_closed_class)},
      {0, nullptr},
  };
  static PyType_Spec spec = {"fxpress._native.ClosedClass", 0, 0, Py_TPFLAGS_DEFAULT, slots};
  static PyObject* const made = [] {
    auto* base = reinterpret_cast<PyObject*>(pybind11::detail::get_internals().default_metaclass);
    const Ref bases = new_tuple(std::span<PyObject* const>(&base, 1));
    return check(PyType_FromSpecWithBases(&spec, bases.get()));
  }();
  return made;
}

// Raises TypeError. This is __reduce_ex__() of closed classes, which cannot be copied or pickled.
[[noreturn]] inline void refuse_to_reduce(const pybind11::object& object, const pybind11::args&) {
  raise(PyExc_TypeError, "cannot pickle '%s' object", Py_TYPE(object.ptr())->tp_name);
}

// Adds a pybind11 class without __new__ to the module, because `cls.__new__(cls)` would create an
// object whose constructor has not run and whose methods would read invalid memory. A closed class
// cannot be subclassed either, because a subclass could skip __init__.
template <class Type>
pybind11::class_<Type> closed_class(pybind11::module_& module, const char* name, const char* doc) {
  pybind11::class_<Type> made(module, name, doc, pybind11::metaclass(closed_metaclass()),
                              pybind11::is_final());
  auto* type = reinterpret_cast<PyTypeObject*>(made.ptr());
  type->tp_new = nullptr;  // makes object.__new__(cls) raise TypeError
  PyType_Modified(type);
  made.def("__reduce_ex__", refuse_to_reduce);
  return made;
}

// Returns the class `name` of the module, so that the caller can add methods to it.
template <class Type>
pybind11::class_<Type> known_class(const pybind11::module_& module, const char* name) {
  return pybind11::reinterpret_borrow<pybind11::class_<Type>>(module.attr(name));
}

}  // namespace fxpress::bind
