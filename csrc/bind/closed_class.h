// Classes whose objects are made by calling them, and in no other way.
#pragma once

#include <pybind11/pybind11.h>

namespace fxpress::bind {

// The metaclass of such classes; borrowed.
PyObject* closed_metaclass();

// TypeError: their objects have no copies and no pickles.
[[noreturn]] void refuse_to_reduce(const pybind11::object& object, const pybind11::args&);

// A class of pybind11's with this name in the module. pybind11 lets anybody make an object that no
// constructor has seen, by `cls.__new__(cls)`, and its methods then read memory that is not there.
// These classes cannot be derived from either, so that no __init__ is left out.
template <class Type>
pybind11::class_<Type> closed_class(pybind11::module_& module, const char* name, const char* doc) {
  pybind11::class_<Type> made(module, name, doc, pybind11::metaclass(closed_metaclass()),
                              pybind11::is_final());
  auto* type = reinterpret_cast<PyTypeObject*>(made.ptr());
  type->tp_new = nullptr;  // object.__new__ and its like refuse a class without one
  PyType_Modified(type);
  made.def("__reduce_ex__", refuse_to_reduce);
  return made;
}

// The class that has this name in the module already, for more methods.
template <class Type>
pybind11::class_<Type> known_class(const pybind11::module_& module, const char* name) {
  return pybind11::reinterpret_borrow<pybind11::class_<Type>>(module.attr(name));
}

}  // namespace fxpress::bind
