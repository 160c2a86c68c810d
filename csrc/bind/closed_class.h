// Defines closed classes, whose instances can be created only by calling the class.
#pragma once

#include <pybind11/pybind11.h>

namespace fxpress::bind {

// The metaclass of closed classes; borrowed.
PyObject* closed_metaclass();

// Raises TypeError, as __reduce_ex__() of closed classes, which cannot be copied or pickled.
[[noreturn]] void refuse_to_reduce(const pybind11::object& object, const pybind11::args&);

// Adds a pybind11 class to the module. By default, `cls.__new__(cls)` creates an instance whose
// constructor has not run, and its methods read invalid memory. A closed class has no __new__, and
// cannot be subclassed, so that a subclass cannot leave out __init__.
template <class Type>
pybind11::class_<Type> closed_class(pybind11::module_& module, const char* name, const char* doc) {
  pybind11::class_<Type> made(module, name, doc, pybind11::metaclass(closed_metaclass()),
                              pybind11::is_final());
  auto* type = reinterpret_cast<PyTypeObject*>(made.ptr());
  type->tp_new = nullptr;  // object.__new__ refuses a class without tp_new
  PyType_Modified(type);
  made.def("__reduce_ex__", refuse_to_reduce);
  return made;
}

// Returns the class with this name in the module, so that the caller can add methods to the class.
template <class Type>
pybind11::class_<Type> known_class(const pybind11::module_& module, const char* name) {
  return pybind11::reinterpret_borrow<pybind11::class_<Type>>(module.attr(name));
}

}  // namespace fxpress::bind
