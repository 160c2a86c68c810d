// Visits the leaves of a node's arguments in the order of torch.fx.map_arg: tuples, lists, dict
// values and slices are descended into, everything else is a leaf. No recursion.
//
// torch.fx copies what a node is given, but lists can be changed afterwards: arguments may share
// parts, so that a walk of a few objects has paths without number, or contain themselves.
#pragma once

#include <memory>
#include <unordered_map>
#include <vector>

#include "fx/symbols.h"
#include "py/arg_cursor.h"

namespace fxpress::fx {

// Notices containers that a walk meets again. Nearly all arguments are small: nothing is noted
// until a walk is long or deep.
class ArgTrail {
 public:
  // A container is about to be opened, with `open` containers around it; container_at(i) is one.
  // False: it was walked before. ValueError when it contains itself.
  template <class At>
  bool enter(PyObject* container, size_t open, At container_at) {
    constexpr size_t kFreeSteps = 1024;
    constexpr size_t kFreeDepth = 128;
    if (++steps_ <= kFreeSteps && open < kFreeDepth) return true;
    if (!known_) {
      known_ = std::make_unique<Known>();
      for (size_t i = 0; i < open; ++i) note(container_at(i));
    }
    return note(container);
  }
  void leave(PyObject* container) {
    if (known_) (*known_)[container] = false;
  }
  // Whether containers are noted: those that are left from here on may be met again.
  bool notes() const { return known_ != nullptr; }
  // Before the next walk.
  void clear() {
    steps_ = 0;
    known_.reset();
  }

 private:
  using Known = std::unordered_map<PyObject*, bool>;  // whether a container is open

  bool note(PyObject* container) {
    const auto [place, is_new] = known_->try_emplace(container, true);
    if (!is_new && place->second) {
      raise(PyExc_ValueError, "an argument of a node contains itself: a %s",
            Py_TYPE(container)->tp_name);
    }
    return is_new;
  }

  size_t steps_ = 0;
  std::unique_ptr<Known> known_;  // made when it is needed: walks are as many as nodes
};

// Calls visit(node) for every node in `root`; for those of a part that is shared at least once.
// `visit` runs no Python code, or raises: what is walked through is not held.
template <class Visit>
void visit_nodes(PyObject* root, std::vector<ArgCursor>& stack, Visit visit) {
  ArgTrail trail;
  const size_t bottom = stack.size();
  const auto enter = [&](PyObject* object) {
    if (Py_TYPE(object) == as_type(symbols.node_type)) {
      visit(object);
      return;
    }
    const ArgKind kind = arg_kind(object);
    if (kind != ArgKind::kLeaf) {
      const auto at = [&](size_t i) { return stack[bottom + i].container; };
      if (trail.enter(object, stack.size() - bottom, at)) stack.push_back({object, kind});
    } else if (is_node(object)) {
      visit(object);
    }
  };
  enter(root);
  while (stack.size() > bottom) {
    if (PyObject* child = stack.back().next()) {
      enter(child);
    } else {
      trail.leave(stack.back().container);
      stack.pop_back();
    }
  }
}

}  // namespace fxpress::fx
