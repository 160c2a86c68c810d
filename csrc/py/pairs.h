// The items of a mapping whose class may have an items() of its own.
#pragma once

#include "py/object.h"

namespace fxpress::cpython {

// A list of pairs, the caller's own. ValueError when items() gives something else.
inline Ref pairs_of(PyObject* mapping) {
  Ref items = Ref::steal(PyMapping_Items(mapping));
  for (Py_ssize_t i = 0; i < PyList_GET_SIZE(items.get()); ++i) {
    PyObject* item = PyList_GET_ITEM(items.get(), i);
    if (PyTuple_Check(item) && PyTuple_GET_SIZE(item) == 2) continue;
    raise(PyExc_ValueError, "the items of a %R are no pairs: %R", Py_TYPE(mapping), item);
  }
  return items;
}

}  // namespace fxpress::cpython
