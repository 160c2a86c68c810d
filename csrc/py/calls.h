// Wraps functions of the C API. The wrappers throw a C++ exception if CPython has set an error.
#pragma once

#include <cstddef>
#include <iterator>

#include "py/object.h"

namespace fxpress::cpython {

inline PyObject* borrowed(PyObject* object) {
  return object;
}
inline PyObject* borrowed(const Ref& object) {
  return object.get();
}

// Returns callable(*arguments). Each argument is a PyObject* or a Ref.
template <class... Arguments>
Ref call(PyObject* callable, const Arguments&... arguments) {
  PyObject* vector[] = {nullptr, borrowed(arguments)...};  // the callee may use the first item
  return Ref::steal(PyObject_Vectorcall(
      callable, vector + 1, sizeof...(arguments) | PY_VECTORCALL_ARGUMENTS_OFFSET, nullptr));
}

// Returns object.name(*arguments).
template <class... Arguments>
Ref call_method(PyObject* object, PyObject* name, const Arguments&... arguments) {
  PyObject* vector[] = {nullptr, object, borrowed(arguments)...};  // as in call()
  return Ref::steal(PyObject_VectorcallMethod(
      name, vector + 1, (1 + sizeof...(arguments)) | PY_VECTORCALL_ARGUMENTS_OFFSET, nullptr));
}

inline bool is_true(PyObject* object) {
  return check(PyObject_IsTrue(object));
}

// Returns whether the objects are identical or compare equal.
inline bool is_equal(PyObject* a, PyObject* b) {
  return check(PyObject_RichCompareBool(a, b, Py_EQ));
}

// Returns isinstance(object, types). types: a class or a tuple of classes. Unlike is_a(), this
// function may run Python code.
inline bool is_instance(PyObject* object, PyObject* types) {
  return check(PyObject_IsInstance(object, types));
}

// Returns `value in container`.
inline bool contains(PyObject* container, PyObject* value) {
  return check(PySequence_Contains(container, value));
}

inline long to_long(PyObject* object) {
  const long result = PyLong_AsLong(object);
  if (result == -1 && PyErr_Occurred() != nullptr) throw_python_error();
  return result;
}

// Returns a list with `size` items. make(i) returns item i as a Ref.
template <class Make>
Ref make_list(size_t size, Make make) {
  Ref list = Ref::steal(PyList_New(static_cast<Py_ssize_t>(size)));
  for (size_t i = 0; i < size; ++i) {
    PyList_SET_ITEM(list.get(), static_cast<Py_ssize_t>(i), make(i).release());
  }
  return list;
}

// Returns a tuple with `size` items. make(i) returns item i as a Ref.
template <class Make>
Ref make_tuple(size_t size, Make make) {
  Ref tuple = Ref::steal(PyTuple_New(static_cast<Py_ssize_t>(size)));
  for (size_t i = 0; i < size; ++i) {
    PyTuple_SET_ITEM(tuple.get(), static_cast<Py_ssize_t>(i), make(i).release());
  }
  return tuple;
}

// Iterates over a dict: `for (const auto& [key, value] : DictRange(dict))`. Items are borrowed. The
// dict must not change during the loop; DictItems allows changes.
class DictRange {
 public:
  explicit DictRange(PyObject* dict) : dict_(dict) {}

  struct Item {
    PyObject* key;
    PyObject* value;
  };

  class Iterator {
   public:
    explicit Iterator(PyObject* dict) : dict_(dict) { ++*this; }
    Iterator& operator++() {
      is_at_end_ = PyDict_Next(dict_, &position_, &item_.key, &item_.value) == 0;
      return *this;
    }
    const Item& operator*() const { return item_; }
    bool operator==(std::default_sentinel_t) const { return is_at_end_; }

   private:
    PyObject* dict_;
    Py_ssize_t position_ = 0;  // position of PyDict_Next
    Item item_{};
    bool is_at_end_ = false;
  };

  Iterator begin() const { return Iterator(dict_); }
  std::default_sentinel_t end() const { return {}; }

 private:
  PyObject* dict_;  // borrowed
};

}  // namespace fxpress::cpython
