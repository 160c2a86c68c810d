// Detects graphs that change under our hands. Callbacks, hooks, the methods of objects in a graph
// and other threads may edit a graph after it was read; a second walk of its nodes notices this
// here.
#pragma once

#include <span>

#include "core/ids.h"
#include "py/object_table.h"

namespace fxpress::fx {

// `function`: what the user called.
[[noreturn]] inline void raise_edited(const char* function) {
  raise(PyExc_RuntimeError,
        "the graph was edited while %s worked on it, by a callback, a hook or another thread; edit "
        "it before or after",
        function);
}

// The inputs of a node as they were read, one by one, for a walk over its arguments as they are.
template <class Id>
class InputCursor {
 public:
  InputCursor(std::span<const Id> inputs, const char* function)
      : inputs_(inputs), function_(function) {}

  Id next() {
    if (at_ == inputs_.size()) raise_edited(function_);
    return inputs_[at_++];
  }
  // The same, for a walk that has come to `node`, one of `nodes` by id.
  Id next(const ObjectTable& nodes, PyObject* node) {
    const Id id = next();
    if (nodes[id.value()] != node) raise_edited(function_);
    return id;
  }
  // The walk is over.
  void finish() const {
    if (at_ != inputs_.size()) raise_edited(function_);
  }

 private:
  std::span<const Id> inputs_;  // in visiting order
  size_t at_ = 0;               // of the next one
  const char* function_;        // see raise_edited()
};

}  // namespace fxpress::fx
