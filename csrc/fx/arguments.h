// Reads, walks and replaces the arguments of a node.
//
// torch.fx declares args as a tuple and kwargs as a dict, but stores any object: a list that was
// assigned to node.args stays a list, and None or a number is accepted too. torch.fx copies the
// arguments of a new node, but lists in them can be changed afterwards. So arguments may share
// parts, which makes the number of paths exponential, or contain themselves.
#pragma once

#include <memory>
#include <span>
#include <unordered_map>
#include <vector>

#include "fx/symbols.h"
#include "py/arg_cursor.h"
#include "py/calls.h"

namespace fxpress::fx {

// The positional arguments as a tuple; a list is copied into one. TypeError for any other type,
// with which torch fails too.
inline Ref args_of(PyObject* node) {
  Ref args = node_field(node, symbols.node_args);
  if (PyTuple_Check(args.get())) return args;
  if (PyList_Check(args.get())) return Ref::steal(PyList_AsTuple(args.get()));
  raise(PyExc_TypeError, "expected a tuple as the args of node %R, found %R", node,
        Py_TYPE(args.get()));
}

// The keyword arguments; TypeError when they are not a dict.
inline Ref kwargs_of(PyObject* node) {
  Ref kwargs = node_field(node, symbols.node_kwargs);
  if (PyDict_Check(kwargs.get())) return kwargs;
  raise(PyExc_TypeError, "expected a dict as the kwargs of node %R, found %R", node,
        Py_TYPE(kwargs.get()));
}

// A field of a node in which torch keeps a dict (users, inputs); TypeError when other code has
// replaced the dict by an object of another type.
inline Ref dict_field(PyObject* node, PyObject* descriptor) {
  Ref dict = node_field(node, descriptor);
  if (PyDict_Check(dict.get())) return dict;
  raise(PyExc_TypeError, "expected a dict as a table of node %R, found %R", node,
        Py_TYPE(dict.get()));
}

// torch too can copy a node only if its args are a tuple and its kwargs a dict: AssertionError.
[[noreturn]] inline void raise_not_copied(PyObject* node, const char* field, const char* expected,
                                          PyObject* value) {
  raise(PyExc_AssertionError, "the %s of node %R must be a %s for it to be copied, not %R", field,
        node, expected, Py_TYPE(value));
}

// Returns the value that an output node returns, its first argument. Raises IndexError when it has
// none.
inline Ref returned_value(PyObject* output) {
  const Ref args = args_of(output);
  if (PyTuple_GET_SIZE(args.get()) == 0) {
    raise(PyExc_IndexError,
          "output node %R does not have an argument: a graph returns the first one", output);
  }
  return Ref::borrow(PyTuple_GET_ITEM(args.get(), 0));
}

// An immutable list of the values.
inline Ref new_immutable_list(std::span<const Ref> values) {
  Ref result = call(symbols.immutable_list_type);
  for (const Ref& value : values) check(PyList_Append(result.get(), value.get()));
  return result;
}

// ---- walks ----

// Detects containers that a walk reaches again. Nearly all arguments are small, so it records
// containers only once a walk is long or deep.
class ArgTrail {
 public:
  // Called before a container is opened inside of `open` others, which container_at(i) returns.
  // Returns false when it was walked before. ValueError when it contains itself.
  template <class At>
  bool enter(PyObject* container, size_t open, At container_at) {
    constexpr size_t kFreeSteps = 1024;
    constexpr size_t kFreeDepth = 128;
    if (++steps_ <= kFreeSteps && open < kFreeDepth) return true;
    if (!known_) {
      known_ = std::make_unique<SeenContainers>();
      for (size_t i = 0; i < open; ++i) note(container_at(i));
    }
    return note(container);
  }
  void leave(PyObject* container) {
    if (known_) (*known_)[container] = false;
  }
  // Whether containers are recorded: the walk may reach a container again after leaving it.
  bool notes() const { return known_ != nullptr; }
  // Called before the next walk.
  void clear() {
    steps_ = 0;
    known_.reset();
  }

 private:
  using SeenContainers = std::unordered_map<PyObject*, bool>;  // whether a container is open

  bool note(PyObject* container) {
    const auto [place, is_new] = known_->try_emplace(container, true);
    if (!is_new && place->second) {
      raise(PyExc_ValueError, "an argument of a node contains itself: a %s",
            Py_TYPE(container)->tp_name);
    }
    return is_new;
  }

  size_t steps_ = 0;
  std::unique_ptr<SeenContainers> known_;  // created on demand, because each node is a walk
};

// Calls visit(node) for every node in `root`, in the order of torch.fx.map_arg: it descends into
// tuples, lists, dict values and slices; other objects are leaves. Does not recurse. The nodes of a
// shared part are visited at least once.
// `visit` must run no Python code unless it raises: the walk holds no references.
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

// Rebuilds `root` as torch.fx.map_arg does: lists become immutable lists, dicts immutable dicts,
// named tuples keep their class. `replace(node)` is called for every node in visiting order (at
// least once for a node of a shared part) and returns the borrowed replacement. Parts that are
// immutable already and do not change are shared with the original. Does not recurse.
class ArgMapper {
 public:
  template <class Replace>
  Ref map(PyObject* root, Replace replace) {
    Ref direct = map_leaf(root, replace);
    if (direct) return direct;
    open_.clear();
    if (!made_.empty()) made_.clear();
    trail_.clear();
    open(root);
    for (;;) {
      OpenContainer& inner = open_.back();
      PyObject* key = nullptr;
      const Ref child = Ref::borrow(inner.cursor.next(&key));
      Ref value;
      if (child) {
        inner.key = Ref::borrow(key);
        value = map_leaf(child.get(), replace);
        if (!value) {
          if (open(child.get())) continue;
          value = Ref::borrow(made_.at(child.get()).value.get());
        }
      } else {
        value = finish(inner);
        PyObject* container = inner.cursor.container;
        trail_.leave(container);
        if (trail_.notes()) {
          made_.insert_or_assign(container,
                                 MappedContainer{std::move(inner.held), Ref::borrow(value.get())});
        }
        open_.pop_back();
        if (open_.empty()) return value;
      }
      OpenContainer& into = open_.back();
      into.values.push_back(std::move(value));
      if (into.cursor.kind == ArgKind::kDict) into.keys.push_back(std::move(into.key));
    }
  }

 private:
  // Holds its container: named tuples and keys of dicts run Python code, which may remove a
  // container from the one around it.
  struct OpenContainer {
    ArgCursor cursor;         // of its next child
    Ref held;                 // the container
    Ref key{};                // of the child being built
    std::vector<Ref> values;  // mapped children so far
    std::vector<Ref> keys{};  // their keys, for dicts
  };
  struct MappedContainer {
    Ref container;  // held, so that no other object gets its address
    Ref value;      // the mapped container
  };

  template <class Replace>
  Ref map_leaf(PyObject* object, Replace& replace) {
    if (Py_TYPE(object) == as_type(symbols.node_type)) return Ref::borrow(replace(object));
    if (arg_kind(object) != ArgKind::kLeaf) return {};
    return is_node(object) ? Ref::borrow(replace(object)) : Ref::borrow(object);
  }

  // Returns false when the container was mapped before.
  bool open(PyObject* container) {
    const auto at = [&](size_t i) { return open_[i].cursor.container; };
    if (!trail_.enter(container, open_.size(), at)) return false;
    open_.push_back(
        OpenContainer{{container, arg_kind(container)}, Ref::borrow(container), {}, {}, {}});
    return true;
  }

  static Ref finish(OpenContainer& container);

  std::vector<OpenContainer> open_;  // outermost first
  ArgTrail trail_;
  std::unordered_map<PyObject*, MappedContainer> made_;  // containers that the trail records
};

}  // namespace fxpress::fx
