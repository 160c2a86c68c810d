#include "bind/closed_class.h"

#include "py/object.h"

namespace fxpress::bind {

namespace {

namespace py = pybind11;

// Implements calls of a closed class: creates an object and runs its constructor.
PyObject* make(PyObject* cls, PyObject* args, PyObject* kwargs) {
  auto* type = reinterpret_cast<PyTypeObject*>(cls);
  PyObject* self = py::detail::make_new_instance(type);
  if (self == nullptr) return nullptr;
  if (type->tp_init(self, args, kwargs) == 0) return self;
  Py_DECREF(self);
  return nullptr;
}

PyType_Slot slots[] = {
    {Py_tp_call, reinterpret_cast<void*>(make)},
    {0, nullptr},
};

PyType_Spec spec = {"fxpress._native.ClosedClass", 0, 0, Py_TPFLAGS_DEFAULT, slots};

}  // namespace

void refuse_to_reduce(const py::object& object, const py::args&) {
  raise(PyExc_TypeError, "cannot pickle '%s' object", Py_TYPE(object.ptr())->tp_name);
}

PyObject* closed_metaclass() {
  static PyObject* const made = [] {
    auto* base = reinterpret_cast<PyObject*>(py::detail::get_internals().default_metaclass);
    const Ref bases = new_tuple(std::span<PyObject* const>(&base, 1));
    return check(PyType_FromSpecWithBases(&spec, bases.get()));
  }();
  return made;
}

}  // namespace fxpress::bind
