// Defines context managers that change the garbage collector, names of torch, or attributes.
// Entering and leaving them runs no byte code, so that an exception from a signal handler (Ctrl-C)
// cannot interrupt a change.
#pragma once

#include <pybind11/pybind11.h>

#include <optional>
#include <utility>

#include "py/object.h"

namespace fxpress::cpython {

// A context manager that constructs a `Held` on entry, and destroys it on exit.
template <class Held>
class HeldBlock {
 public:
  void enter() { held_.emplace(); }
  void exit(const pybind11::args&) { held_.reset(); }

 private:
  std::optional<Held> held_;  // set while the block is active
};

// A context manager that calls begin() on entry, and end(result of begin()) on exit. Both must be
// built-in functions, because Python functions run byte code.
class Block {
 public:
  Block(pybind11::object begin, pybind11::object end)
      : begin_(std::move(begin)), end_(std::move(end)) {}
  void enter() {
    if (token_)
      raise(PyExc_RuntimeError, "this context manager is already active: create another one");
    token_ = begin_();
  }
  void exit(const pybind11::args&) {
    if (const pybind11::object token = std::exchange(token_, {})) end_(token);
  }

 private:
  pybind11::object begin_;
  pybind11::object end_;
  pybind11::object token_;  // the result of begin() while the block is active
};

// Sets an attribute, and returns its old value.
inline pybind11::object exchange_attribute(const pybind11::object& object,
                                           const pybind11::str& name,
                                           const pybind11::object& value) {
  pybind11::object before = object.attr(name);
  object.attr(name) = value;
  return before;
}

}  // namespace fxpress::cpython
