// The __dict__ of an instance, for descriptors that stand for one of its attributes.
#pragma once

#include "py/object.h"

namespace fxpress::cpython {

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
