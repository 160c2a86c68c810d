// Converts plain values between documents, Python and C++.
#pragma once

#include <string>

#include "py/object.h"
#include "py/text.h"
#include "schema/document.h"

namespace fxpress::serde {

// Returns None, a bool, an int, a float or a str; an empty Ref for a compound value.
inline Ref scalar(const schema::Document& document, const schema::Value& value) {
  switch (value.kind) {
    case schema::ValueKind::kNull:
      return Ref::borrow(Py_None);
    case schema::ValueKind::kBool:
      return Ref::borrow(value.integer != 0 ? Py_True : Py_False);
    case schema::ValueKind::kInt:
      return Ref::steal(PyLong_FromLongLong(value.integer));
    case schema::ValueKind::kBigInt:
      return Ref::steal(PyLong_FromString(std::string(document.text(value)).c_str(), nullptr, 10));
    case schema::ValueKind::kReal:
      return Ref::steal(PyFloat_FromDouble(value.real));
    case schema::ValueKind::kString:
      return new_text(document.text(value));
    default:
      return {};
  }
}

// Returns float(value).
inline double real_of(PyObject* value) {
  const double result = PyFloat_AsDouble(value);
  if (result == -1.0 && PyErr_Occurred() != nullptr) throw_python_error();
  return result;
}

// Writes an int of any size.
inline void write_integer(PyObject* value, schema::EventSink& sink) {
  int overflow = 0;
  const long long small = PyLong_AsLongLongAndOverflow(value, &overflow);
  if (small == -1 && PyErr_Occurred() != nullptr) throw_python_error();
  if (overflow == 0) return sink.integer(small);
  sink.big_integer(utf8(Ref::steal(PyNumber_ToBase(value, 10)).get()));
}

}  // namespace fxpress::serde
