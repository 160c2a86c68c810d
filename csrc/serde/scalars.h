// Plain values of a document as Python objects, and numbers of Python as C++ has them.
#pragma once

#include "py/object.h"
#include "py/text.h"
#include "schema/document.h"

namespace fxpress::serde {

// None, a bool, an int, a float or a str; an empty Ref for a value with others in it.
Ref scalar(const schema::Document& document, const schema::Value& value);

// Returns float(value).
inline double real_of(PyObject* value) {
  const double result = PyFloat_AsDouble(value);
  if (result == -1.0 && PyErr_Occurred() != nullptr) throw_python_error();
  return result;
}

// An int of any size.
inline void write_integer(PyObject* value, schema::EventSink& sink) {
  int overflow = 0;
  const long long small = PyLong_AsLongLongAndOverflow(value, &overflow);
  if (small == -1 && PyErr_Occurred() != nullptr) throw_python_error();
  if (overflow == 0) return sink.integer(small);
  sink.big_integer(utf8(Ref::steal(PyNumber_ToBase(value, 10)).get()));
}

}  // namespace fxpress::serde
