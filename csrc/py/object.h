// Defines owned references, and error checks for the C API.
#pragma once

#include <pybind11/pybind11.h>

#include <span>
#include <string_view>
#include <utility>

#include "py/interpreter.h"

namespace fxpress::cpython {

// Throws a C++ exception for the error that CPython has set.
[[noreturn]] inline void throw_python_error() {
  throw pybind11::error_already_set();
}

// Sets a Python exception and throws it.
template <class... Args>
[[noreturn]] void raise(PyObject* type, const char* format, Args... args) {
  PyErr_Format(type, format, args...);
  throw_python_error();
}

inline PyObject* check(PyObject* result) {
  if (result == nullptr) throw_python_error();
  return result;
}
inline bool check(int status) {
  if (status < 0) throw_python_error();
  return status != 0;
}

// An owned reference to a Python object, or null.
class Ref {
 public:
  Ref() = default;
  Ref(Ref&& other) noexcept : object_(std::exchange(other.object_, nullptr)) {}
  Ref& operator=(Ref&& other) noexcept {
    std::swap(object_, other.object_);
    return *this;
  }
  Ref(const Ref&) = delete;
  Ref& operator=(const Ref&) = delete;
  ~Ref() { Py_XDECREF(object_); }

  // Takes ownership of a new reference. Throws the current Python error if it is null.
  static Ref steal(PyObject* object) { return Ref(check(object)); }
  static Ref borrow(PyObject* object) {
    Py_XINCREF(object);
    return Ref(object);
  }

  PyObject* get() const { return object_; }
  PyObject* release() { return std::exchange(object_, nullptr); }
  explicit operator bool() const { return object_ != nullptr; }

 private:
  explicit Ref(PyObject* object) : object_(object) {}
  PyObject* object_ = nullptr;  // owned
};

inline PyTypeObject* as_type(PyObject* type) {
  return reinterpret_cast<PyTypeObject*>(type);
}

// Like isinstance(object, type), but ignores __class__ and runs no Python code.
inline bool is_a(PyObject* object, PyObject* type) {
  return PyObject_TypeCheck(object, as_type(type)) != 0;
}

inline Ref get_attr(PyObject* object, PyObject* name) {
  return Ref::steal(PyObject_GetAttr(object, name));
}

// Sets an attribute without calling __setattr__ of the object's class.
inline void set_attribute(PyObject* object, PyObject* name, PyObject* value) {
  check(PyObject_GenericSetAttr(object, name, value));
}

// Returns an attribute, or an empty Ref if the object lacks it. Throws other errors.
inline Ref find_attr(PyObject* object, PyObject* name) {
  PyObject* result = nullptr;
  check(optional_attr(object, name, &result));
  return result == nullptr ? Ref() : Ref::steal(result);
}

// Returns dict[key], borrowed, or null. Raises TypeError unless `dict` is a dict.
inline PyObject* dict_get(PyObject* dict, PyObject* key) {
  PyObject* value = PyDict_GetItemWithError(dict, key);
  if (value == nullptr && PyErr_Occurred() != nullptr) {
    if (PyDict_Check(dict)) throw_python_error();
    PyErr_Clear();
    raise(PyExc_TypeError, "expected a dict, not %R", Py_TYPE(dict));
  }
  return value;
}

// Iterates over a dict that Python code may change during the loop. Owns the current key and value.
// Like a loop in Python, raises RuntimeError if the dict grows or shrinks.
class DictItems {
 public:
  explicit DictItems(PyObject* dict) : dict_(Ref::borrow(dict)), size_(PyDict_GET_SIZE(dict)) {}

  // Moves to the next item. Returns false at the end.
  bool next() {
    if (PyDict_GET_SIZE(dict_.get()) != size_) {
      raise(PyExc_RuntimeError, "dictionary changed size during iteration");
    }
    PyObject* key = nullptr;
    PyObject* value = nullptr;
    if (PyDict_Next(dict_.get(), &position_, &key, &value) == 0) return false;
    key_ = Ref::borrow(key);
    value_ = Ref::borrow(value);
    return true;
  }
  PyObject* key() const { return key_.get(); }
  PyObject* value() const { return value_.get(); }

 private:
  Ref dict_;
  Py_ssize_t size_;          // number of items when the loop began
  Py_ssize_t position_ = 0;  // position of PyDict_Next
  Ref key_;                  // key of the current item
  Ref value_;                // value of the current item
};

// Returns the UTF-8 text of a str. The text is valid until the str is freed.
inline std::string_view utf8(PyObject* string) {
  Py_ssize_t size = 0;
  const char* text = PyUnicode_AsUTF8AndSize(string, &size);
  if (text == nullptr) throw_python_error();
  return {text, static_cast<size_t>(size)};
}

inline Ref new_string(std::string_view text) {
  return Ref::steal(PyUnicode_FromStringAndSize(text.data(), static_cast<Py_ssize_t>(text.size())));
}

// Returns the items of a tuple or list, borrowed. A list must not change while they are used.
inline std::span<PyObject* const> items_of(PyObject* sequence) {
  return {PySequence_Fast_ITEMS(sequence), static_cast<size_t>(PySequence_Fast_GET_SIZE(sequence))};
}

inline Ref new_tuple(std::span<PyObject* const> items) {
  Ref tuple = Ref::steal(PyTuple_New(static_cast<Py_ssize_t>(items.size())));
  for (size_t i = 0; i < items.size(); ++i) {
    Py_INCREF(items[i]);
    PyTuple_SET_ITEM(tuple.get(), static_cast<Py_ssize_t>(i), items[i]);
  }
  return tuple;
}

// Stores a new reference to objects[role] in `slot`. May be called again if Python code is
// reloaded.
inline void fill_slot(PyObject*& slot, PyObject* objects, const char* role) {
  PyObject* value = PyDict_GetItemString(objects, role);
  if (value == nullptr) raise(PyExc_KeyError, "native symbol '%s' is not defined", role);
  Py_INCREF(value);
  Py_XSETREF(slot, value);
}

// Counts one level of recursion during its lifetime. Raises RecursionError at Python's limit.
class RecursionGuard {
 public:
  explicit RecursionGuard(const char* where) {
    if (Py_EnterRecursiveCall(where) != 0) throw_python_error();
  }
  ~RecursionGuard() { Py_LeaveRecursiveCall(); }
  RecursionGuard(const RecursionGuard&) = delete;
  RecursionGuard& operator=(const RecursionGuard&) = delete;
};

// Handles signals (Ctrl-C). Must be called in loops of over 100 ms. step: the iteration number.
inline void poll_signals(size_t step) {
  if ((step & 0x3ff) == 0x3ff) check(PyErr_CheckSignals());
}

}  // namespace fxpress::cpython

// All components use Python objects, so this folder's names are available in namespace fxpress.
namespace fxpress {
using namespace cpython;
}
