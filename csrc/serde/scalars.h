// Plain values of a document as Python objects.
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

}  // namespace fxpress::serde
