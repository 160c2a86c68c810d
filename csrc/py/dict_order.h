// The order of a dict's keys.
#pragma once

#include "py/object.h"

namespace fxpress::cpython {

// Inserts items right behind `key`, as if they had been there when the later keys were added.
// One step for other threads: no Python code runs in between.
inline void insert_after(const pybind11::dict& dict, const pybind11::str& key,
                         const pybind11::dict& items) {
  const pybind11::dict before = pybind11::dict(dict.attr("copy")());
  bool behind = false;
  for (const auto& [name, value] : before) {
    if (behind && !items.contains(name)) {
      check(PyDict_DelItem(dict.ptr(), name.ptr()));
      check(PyDict_SetItem(dict.ptr(), name.ptr(), value.ptr()));
    }
    if (!name.equal(key)) continue;
    behind = true;
    for (const auto& [new_name, new_value] : items) {
      if (dict.contains(new_name)) check(PyDict_DelItem(dict.ptr(), new_name.ptr()));
      check(PyDict_SetItem(dict.ptr(), new_name.ptr(), new_value.ptr()));
    }
  }
}

}  // namespace fxpress::cpython
