// Visits the leaves of a node's arguments in the order of torch.fx.map_arg: tuples, lists, dict
// values and slices are descended into, everything else is a leaf. No recursion.
#pragma once

#include <vector>

#include "fx/symbols.h"

namespace fxpress::fx {

enum class ArgKind : uint8_t { kLeaf, kTuple, kList, kDict, kSlice };

inline ArgKind arg_kind(PyObject* object) {
  if (PyTuple_Check(object)) return ArgKind::kTuple;
  if (PyList_Check(object)) return ArgKind::kList;
  if (PyDict_Check(object)) return ArgKind::kDict;
  if (PySlice_Check(object)) return ArgKind::kSlice;
  return ArgKind::kLeaf;
}

// Steps through the children of one container.
struct ArgCursor {
  PyObject* container;    // borrowed: the arguments own it
  ArgKind kind;           // what it is
  Py_ssize_t position{};  // of the next child

  // The next child (borrowed), or null at the end. `key` is set for dicts.
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

// Calls visit(node) for every node in `root`.
template <class Visit>
void visit_nodes(PyObject* root, std::vector<ArgCursor>& stack, Visit visit) {
  const auto enter = [&](PyObject* object) {
    if (Py_TYPE(object) == as_type(symbols.node_type)) {
      visit(object);
      return;
    }
    const ArgKind kind = arg_kind(object);
    if (kind != ArgKind::kLeaf) {
      stack.push_back({object, kind});
    } else if (is_node(object)) {
      visit(object);
    }
  };
  const size_t bottom = stack.size();
  enter(root);
  while (stack.size() > bottom) {
    if (PyObject* child = stack.back().next()) {
      enter(child);
    } else {
      stack.pop_back();
    }
  }
}

}  // namespace fxpress::fx
