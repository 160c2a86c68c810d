// Iterates over containers in the arguments of calls: tuples, lists, dicts and slices.
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
  PyObject* container;  // borrowed; the user of the cursor keeps it alive
  ArgKind kind;
  Py_ssize_t position{};  // index of the next child

  // Returns the next child, borrowed; null at the end. For a dict, also sets `key`.
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

// Returns the next child of the innermost container in `open`, a stack of containers. First removes
// containers without further children. Returns null if the stack becomes empty.
inline PyObject* next_inside(std::vector<ArgCursor>& open) {
  while (!open.empty()) {
    if (PyObject* child = open.back().next()) return child;
    open.pop_back();
  }
  return nullptr;
}

}  // namespace fxpress::cpython
