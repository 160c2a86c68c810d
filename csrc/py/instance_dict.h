// Reads the __dict__ of an instance, even if its class overrides the attribute __dict__. Also reads
// the dicts of parameters, buffers, children and hooks ("tables") in a module's __dict__.
#pragma once

#include <functional>

#include "py/object.h"

namespace fxpress::cpython {

inline Ref instance_dict(PyObject* instance) {
  return Ref::steal(PyObject_GenericGetDict(instance, nullptr));
}

// CPython calls the next two functions through slots of types, so they do not throw.

// Returns a new reference to dict[name]. Returns null without an error if the key is absent, and
// null with an error if comparing keys fails, which may run Python code.
inline PyObject* value_in_dict(PyObject* dict, PyObject* name) {
  PyObject* value = PyDict_GetItemWithError(dict, name);
  Py_XINCREF(value);
  return value;
}

// Sets instance.__dict__[name], or deletes it if `value` is null. Returns 0, or -1 with an error.
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

// Returns a table that is exactly a dict, so that the C API can read and write it; borrowed.
// Returns null if the table is missing or has another type, which only Python code can handle.
inline PyObject* dict_table(PyObject* module_dict, PyObject* table_name) {
  PyObject* found = dict_get(module_dict, table_name);
  return found != nullptr && PyDict_CheckExact(found) ? found : nullptr;
}

// Returns a table that the C API of dicts can read: a dict or an OrderedDict; borrowed. Else null.
inline PyObject* readable_table(PyObject* module_dict, PyObject* table_name) {
  PyObject* found = dict_get(module_dict, table_name);
  return found != nullptr && (PyDict_CheckExact(found) || PyODict_CheckExact(found)) ? found
                                                                                     : nullptr;
}

// Searches the tables for `name` in order; returns its value, borrowed. Returns null if no table
// contains `name`, or if the search reaches a missing table. tables: parameters, buffers and
// children, as in nn.Module.__getattr__. table_of(table) returns a dict or null.
template <class Tables, class TableOf = std::identity>
PyObject* find_in_tables(const Tables& tables, PyObject* name, TableOf table_of = {}) {
  for (PyObject* each : tables) {
    PyObject* table = table_of(each);
    if (table == nullptr) return nullptr;
    if (PyObject* value = dict_get(table, name)) return value;
  }
  return nullptr;
}

// Returns whether all tables exist and none contains `name`.
template <class Tables, class TableOf = std::identity>
bool all_lack(const Tables& tables, PyObject* name, TableOf table_of = {}) {
  for (PyObject* each : tables) {
    PyObject* table = table_of(each);
    if (table == nullptr || dict_get(table, name) != nullptr) return false;
  }
  return true;
}

}  // namespace fxpress::cpython
