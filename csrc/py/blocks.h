// Defines context managers that change the garbage collector, torch's names or attributes. Entering
// and leaving them runs no byte code, so that a signal handler that raises (Ctrl-C) cannot
// interrupt a change half way.
#pragma once

#include <pybind11/pybind11.h>

#include <optional>
#include <utility>

#include "py/object.h"

namespace fxpress::cpython {

// A context manager that constructs a Held on entry and destroys it on exit.
template <class Held>
class HeldBlock {
 public:
  void enter() { held_.emplace(); }
  void exit(const pybind11::args&) { held_.reset(); }

 private:
  std::optional<Held> held_;  // while the block runs
};

// A context manager that calls `begin` on entry, and `end` on exit with the result of `begin`.
// `begin` and `end` must be built-in functions, because a Python function runs byte code.
class Block {
 public:
  Block(pybind11::object begin, pybind11::object end)
      : begin_(std::move(begin)), end_(std::move(end)) {}
  void enter() {
    if (token_) raise(PyExc_RuntimeError, "the block is already active");
    token_ = begin_();
  }
  void exit(const pybind11::args&) {
    if (const pybind11::object token = std::exchange(token_, {})) end_(token);
  }

 private:
  pybind11::object begin_;
  pybind11::object end_;
  pybind11::object token_;  // while the block runs
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
