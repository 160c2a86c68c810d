// Iterates over the containers in arguments of calls: tuples, lists, dicts and slices.
#pragma once

#include <cstdint>
#include <vector>

#include "py/object.h"

namespace fxpress::cpython {

enum class ArgKind : uint8_t { kLeaf, kTuple, kList, kDict, kSlice };

inline ArgKind arg_kind(PyObject* object) {
  if (PyTuple_Check(object)) return ArgKind::kTuple;
  if (PyList_Check(object)) return ArgKind::kList;
  if (PyDict_Check(object)) return ArgKind::kDict;
  if (PySlice_Check(object)) return ArgKind::kSlice;
  return ArgKind::kLeaf;
}

// Iterates over the children of one container.
struct ArgCursor {
  PyObject* container;    // borrowed from the arguments, or from a reference that the walk holds
  ArgKind kind;           // type of the container
  Py_ssize_t position{};  // position of the next child

  // Returns the next child, borrowed, or null at the end. Sets `key` for dicts.
  PyObject* next(PyObject** key = nullptr) {
    switch (kind) {
      case ArgKind::kTuple:
        return position < PyTuple_GET_SIZE(container) ? PyTuple_GET_ITEM(container, position++)
                                                      : nullptr;
      case ArgKind::kList:
        return position < PyList_GET_SIZE(container) ? PyList_GET_ITEM(container, position++)
                                                     : nullptr;
      case ArgKind::kDict: {
        PyObject* value = nullptr;
        PyObject* ignored = nullptr;
        return PyDict_Next(container, &position, key != nullptr ? key : &ignored, &value) != 0
                   ? value
                   : nullptr;
      }
      case ArgKind::kSlice: {
        auto* slice = reinterpret_cast<PySliceObject*>(container);
        PyObject* const parts[] = {slice->start, slice->stop, slice->step};
        return position < 3 ? parts[position++] : nullptr;
      }
      case ArgKind::kLeaf:
        break;
    }
    return nullptr;
  }
};

// Returns the next child of the innermost container in the stack `open`, after removing containers
// without further children. Null when the stack is empty.
inline PyObject* next_inside(std::vector<ArgCursor>& open) {
  while (!open.empty()) {
    if (PyObject* child = open.back().next()) return child;
    open.pop_back();
  }
  return nullptr;
}

}  // namespace fxpress::cpython
