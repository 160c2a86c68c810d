// Creates tuples and instances of classes, and lists the items of mappings.
#pragma once

#include <initializer_list>
#include <span>
#include <utility>

#include "py/calls.h"
#include "py/object.h"

namespace fxpress::cpython {

// Returns a tuple of `values`, whose references move to the tuple.
inline Ref take_as_tuple(std::span<Ref> values) {
  return make_tuple(values.size(), [&](size_t i) { return std::move(values[i]); });
}

// Returns an object without attributes, without calling __init__. From Python 3.11 on, attributes
// set one by one are stored inline in the object, which is smaller and faster than a dict.
inline Ref new_object(PyObject* type) {
  static PyObject* const no_arguments = check(PyTuple_New(0));
  return Ref::steal(PyBaseObject_Type.tp_new(as_type(type), no_arguments, nullptr));
}

// Returns an object of class `type` with `dict` as its __dict__, without calling __init__.
inline Ref new_instance(PyObject* type, PyObject* dict) {
  Ref object = Ref::steal(as_type(type)->tp_alloc(as_type(type), 0));
  check(set_instance_dict(object.get(), dict));
  return object;
}

// Returns an object of class `type` with `attributes`, without calling __init__.
inline Ref new_instance(PyObject* type,
                        std::initializer_list<std::pair<PyObject*, PyObject*>> attributes) {
  Ref object = new_object(type);
  for (const auto& [name, value] : attributes) {
    set_attribute(object.get(), name, value);
  }
  return object;
}

// Returns a list of the pairs that mapping.items() returns; a class may override items(). Raises
// ValueError if an item is not a pair.
inline Ref pairs_of(PyObject* mapping) {
  Ref items = Ref::steal(PyMapping_Items(mapping));
  for (PyObject* item : items_of(items.get())) {
    if (PyTuple_Check(item) && PyTuple_GET_SIZE(item) == 2) continue;
    raise(PyExc_ValueError, "expected pairs as the items of a %R, found %R", Py_TYPE(mapping),
          item);
  }
  return items;
}

}  // namespace fxpress::cpython
