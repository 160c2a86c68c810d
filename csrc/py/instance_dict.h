// Reads the __dict__ of an instance itself, not the one that its class may answer with, and the
// tables in a module's: of its parameters, buffers, children and hooks. torch decides which names
// they have there; the callers pass them.
#pragma once

#include <functional>

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

// A table that is a dict and nothing else: it can be read and written as one. Borrowed; null when
// there is none, or another thing, of which Python has to be asked.
inline PyObject* dict_table(PyObject* module_dict, PyObject* table_name) {
  PyObject* found = dict_get(module_dict, table_name);
  return found != nullptr && PyDict_CheckExact(found) ? found : nullptr;
}

// Finds a table that can be read as a dict, which an OrderedDict can be too.
inline PyObject* readable_table(PyObject* module_dict, PyObject* table_name) {
  PyObject* found = dict_get(module_dict, table_name);
  return found != nullptr && (PyDict_CheckExact(found) || PyODict_CheckExact(found)) ? found
                                                                                     : nullptr;
}

// Finds the value of a name in the first table that has the name; borrowed. Returns null when no
// table has the name, or when a table is missing: then the caller asks Python. The tables come in
// the order of nn.Module.__getattr__: parameters, buffers, children; table_of(table) is a dict or
// null.
template <class Tables, class TableOf = std::identity>
PyObject* find_in_tables(const Tables& tables, PyObject* name, TableOf table_of = {}) {
  for (PyObject* each : tables) {
    PyObject* table = table_of(each);
    if (table == nullptr) return nullptr;
    if (PyObject* value = dict_get(table, name)) return value;
  }
  return nullptr;
}

// Whether all of the tables are there, and none has the name.
template <class Tables, class TableOf = std::identity>
bool all_lack(const Tables& tables, PyObject* name, TableOf table_of = {}) {
  for (PyObject* each : tables) {
    PyObject* table = table_of(each);
    if (table == nullptr || dict_get(table, name) != nullptr) return false;
  }
  return true;
}

}  // namespace fxpress::cpython
