// Reads the __dict__ of an instance itself, not the one that its class may answer with.
#pragma once

#include "py/object.h"

namespace fxpress::cpython {

inline Ref instance_dict(PyObject* instance) {
  return Ref::steal(PyObject_GenericGetDict(instance, nullptr));
}

// Functions for descriptors that stand for an attribute of an instance. They do not throw, as slots
// of types do not.

// A value of a dict, of which keys may run Python code when they are compared: a new reference, or
// null without an error or with one.
inline PyObject* value_in_dict(PyObject* dict, PyObject* name) {
  PyObject* value = PyDict_GetItemWithError(dict, name);
  Py_XINCREF(value);
  return value;
}

// Sets, or deletes with a null value, as the tp_descr_set slot does: 0, or -1 with an error.
inline int set_in_dict(PyObject* instance, PyObject* name, PyObject* value) {
  PyObject* dict = PyObject_GenericGetDict(instance, nullptr);
  if (dict == nullptr) return -1;
  const int status =
      value != nullptr ? PyDict_SetItem(dict, name, value) : PyDict_DelItem(dict, name);
  Py_DECREF(dict);
  if (status < 0 && value == nullptr && PyErr_ExceptionMatches(PyExc_KeyError) != 0) {
    PyErr_SetObject(PyExc_AttributeError, name);
  }
  return status;
}

}  // namespace fxpress::cpython
