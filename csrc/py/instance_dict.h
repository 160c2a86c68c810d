// Reads the __dict__ of an instance, even if its class overrides the attribute __dict__, and the
// tables of parameters, buffers, children and hooks in a module's __dict__. The callers pass
// torch's names of the tables.
#pragma once

#include <functional>

#include "py/object.h"

namespace fxpress::cpython {

inline Ref instance_dict(PyObject* instance) {
  return Ref::steal(PyObject_GenericGetDict(instance, nullptr));
}

// The next two functions serve as slots of descriptor types. They do not throw, because CPython
// calls slots from C.

// Returns a new reference to a value of a dict. Null without an error when the key is absent; null
// with an error when a comparison of keys, which may run Python code, fails.
inline PyObject* value_in_dict(PyObject* dict, PyObject* name) {
  PyObject* value = PyDict_GetItemWithError(dict, name);
  Py_XINCREF(value);
  return value;
}

// Sets a value in an instance's __dict__; null deletes it. Returns 0, or -1 with an error.
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

// Finds a table that is exactly a dict, so that the C API can read and write it. Borrowed; null
// when the table is missing or of another type, which only Python code can handle.
inline PyObject* dict_table(PyObject* module_dict, PyObject* table_name) {
  PyObject* found = dict_get(module_dict, table_name);
  return found != nullptr && PyDict_CheckExact(found) ? found : nullptr;
}

// Finds a table that can be read by the C API of dicts: a dict or an OrderedDict.
inline PyObject* readable_table(PyObject* module_dict, PyObject* table_name) {
  PyObject* found = dict_get(module_dict, table_name);
  return found != nullptr && (PyDict_CheckExact(found) || PyODict_CheckExact(found)) ? found
                                                                                     : nullptr;
}

// Finds the value of a name in the first table that has the name; borrowed. Returns null when no
// table has the name, or when a table is missing, which only Python code can handle. `tables` are
// in the order of nn.Module.__getattr__: parameters, buffers, children. table_of(table) returns a
// dict or null.
template <class Tables, class TableOf = std::identity>
PyObject* find_in_tables(const Tables& tables, PyObject* name, TableOf table_of = {}) {
  for (PyObject* each : tables) {
    PyObject* table = table_of(each);
    if (table == nullptr) return nullptr;
    if (PyObject* value = dict_get(table, name)) return value;
  }
  return nullptr;
}

// Whether all tables are present and none has the name.
template <class Tables, class TableOf = std::identity>
bool all_lack(const Tables& tables, PyObject* name, TableOf table_of = {}) {
  for (PyObject* each : tables) {
    PyObject* table = table_of(each);
    if (table == nullptr || dict_get(table, name) != nullptr) return false;
  }
  return true;
}

}  // namespace fxpress::cpython
