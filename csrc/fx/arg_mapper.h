// Arguments with other nodes in place of the ones they mention.
#pragma once

#include <vector>

#include "fx/arg_walk.h"

namespace fxpress::fx {

// Rebuilds `root` as torch.fx.map_arg does: lists become immutable lists, dicts immutable dicts,
// named tuples keep their class. `replace(node)` is called for every node in visiting order and
// returns the borrowed replacement; for nodes of a part that is shared at least once. Parts that
// mention no node and are immutable already are shared with the original, not copied. No recursion.
class ArgMapper {
 public:
  template <class Replace>
  Ref map(PyObject* root, Replace replace) {
    Ref direct = map_leaf(root, replace);
    if (direct) return direct;
    frames_.clear();
    if (!made_.empty()) made_.clear();
    trail_.clear();
    open(root);
    for (;;) {
      Frame& frame = frames_.back();
      PyObject* key = nullptr;
      const Ref child = Ref::borrow(frame.cursor.next(&key));
      Ref value;
      if (child) {
        frame.key = Ref::borrow(key);
        value = map_leaf(child.get(), replace);
        if (!value) {
          if (open(child.get())) continue;
          value = Ref::borrow(made_.at(child.get()).value.get());
        }
      } else {
        value = finish(frame);
        PyObject* container = frame.cursor.container;
        trail_.leave(container);
        if (trail_.notes()) {
          made_.insert_or_assign(container, Made{std::move(frame.held), Ref::borrow(value.get())});
        }
        frames_.pop_back();
        if (frames_.empty()) return value;
      }
      Frame& into = frames_.back();
      into.values.push_back(std::move(value));
      if (into.cursor.kind == ArgKind::kDict) into.keys.push_back(std::move(into.key));
    }
  }

 private:
  // Named tuples and keys of dicts run Python code, which may take any container out of the one
  // around it.
  struct Frame {
    ArgCursor cursor;         // where we are in the container
    Ref held;                 // the container
    Ref key{};                // of the child being built
    std::vector<Ref> values;  // mapped children so far
    std::vector<Ref> keys{};  // their keys, for dicts
  };
  struct Made {
    Ref container;  // its address stays its own
    Ref value;      // what it became
  };

  template <class Replace>
  Ref map_leaf(PyObject* object, Replace& replace) {
    if (Py_TYPE(object) == as_type(symbols.node_type)) return Ref::borrow(replace(object));
    if (arg_kind(object) != ArgKind::kLeaf) return {};
    return is_node(object) ? Ref::borrow(replace(object)) : Ref::borrow(object);
  }

  // False: it was mapped before.
  bool open(PyObject* container) {
    const auto at = [&](size_t i) { return frames_[i].cursor.container; };
    if (!trail_.enter(container, frames_.size(), at)) return false;
    frames_.push_back(Frame{{container, arg_kind(container)}, Ref::borrow(container), {}, {}, {}});
    return true;
  }

  static Ref finish(Frame& frame);

  std::vector<Frame> frames_;  // the open containers, outermost first
  ArgTrail trail_;
  std::unordered_map<PyObject*, Made> made_;  // by container, of those that the trail knows
};

}  // namespace fxpress::fx
