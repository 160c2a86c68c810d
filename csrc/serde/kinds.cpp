#include "serde/kinds.h"

#include "fx/symbols.h"
#include "serde/symbols.h"

namespace fxpress::serde {

namespace {

long position_of(PyObject* spec, PyObject* kinds) {
  const Ref kind = get_attr(spec, fx::names.kind);
  PyObject* each = nullptr;
  PyObject* number = nullptr;
  for (Py_ssize_t at = 0; PyDict_Next(kinds, &at, &each, &number) != 0;) {
    if (each == kind.get()) return PyLong_AsLong(number);
  }
  PyObject* position = dict_get(kinds, kind.get());
  if (position == nullptr) raise(PyExc_AssertionError, "Unknown argument kind: %R", spec);
  return PyLong_AsLong(position);
}

}  // namespace

InputKind input_kind(PyObject* spec) {
  return static_cast<InputKind>(position_of(spec, symbols.input_kinds));
}

OutputKind output_kind(PyObject* spec) {
  return static_cast<OutputKind>(position_of(spec, symbols.output_kinds));
}

}  // namespace fxpress::serde
