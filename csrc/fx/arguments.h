// Reads, walks and replaces the arguments of a node.
//
// torch.fx declares args as a tuple and kwargs as a dict, but accepts any object: a list assigned
// to node.args stays a list, and None or a number is accepted too. torch.fx copies the arguments of
// a new node, but other code can change lists in them later. An argument may therefore contain
// itself, or contain one container many times, which gives exponentially many paths.
#pragma once

#include <memory>
#include <span>
#include <unordered_map>
#include <vector>

#include "fx/symbols.h"
#include "py/arg_cursor.h"
#include "py/calls.h"

namespace fxpress::fx {

// Returns the positional arguments as a tuple. Converts a list. Raises TypeError for other types,
// which torch does not support either.
inline Ref args_of(PyObject* node) {
  Ref args = node_field(node, symbols.node_args);
  if (PyTuple_Check(args.get())) return args;
  if (PyList_Check(args.get())) return Ref::steal(PyList_AsTuple(args.get()));
  raise(PyExc_TypeError, "expected a tuple as the args of node %R, found %R", node,
        Py_TYPE(args.get()));
}

// Returns the keyword arguments. Raises TypeError unless they are a dict.
inline Ref kwargs_of(PyObject* node) {
  Ref kwargs = node_field(node, symbols.node_kwargs);
  if (PyDict_Check(kwargs.get())) return kwargs;
  raise(PyExc_TypeError, "expected a dict as the kwargs of node %R, found %R", node,
        Py_TYPE(kwargs.get()));
}

// Returns a field of a node that contains a dict, such as users or _input_nodes. Raises TypeError
// if other code has stored an object of another type there.
inline Ref dict_field(PyObject* node, PyObject* descriptor) {
  Ref dict = node_field(node, descriptor);
  if (PyDict_Check(dict.get())) return dict;
  raise(PyExc_TypeError, "expected a dict as the field %R of node %R, found %R",
        reinterpret_cast<PyDescrObject*>(descriptor)->d_name, node, Py_TYPE(dict.get()));
}

// Returns node.meta.get(key). Returns an empty Ref if the meta lacks the key or is not a dict.
inline Ref find_meta(PyObject* node, PyObject* key) {
  const Ref meta = node_field(node, symbols.node_meta);
  return PyDict_Check(meta.get()) ? Ref::borrow(dict_get(meta.get(), key)) : Ref();
}

// Raises the AssertionError that torch raises if a copied node's args are not a tuple, or its
// kwargs are not a dict.
[[noreturn]] inline void raise_not_copied(PyObject* node, const char* field, const char* expected,
                                          PyObject* value) {
  raise(PyExc_AssertionError, "cannot copy node %R: expected a %s as its %s, found %R", node,
        expected, field, Py_TYPE(value));
}

// Returns the first argument of an output node: the value that the graph returns. Raises IndexError
// if the node has no argument.
inline Ref returned_value(PyObject* output) {
  const Ref args = args_of(output);
  if (PyTuple_GET_SIZE(args.get()) == 0) {
    raise(PyExc_IndexError,
          "output node %R has no argument: expected the value that the graph returns", output);
  }
  return Ref::borrow(PyTuple_GET_ITEM(args.get(), 0));
}

inline Ref new_immutable_list(std::span<const Ref> values) {
  Ref result = call(symbols.immutable_list_type);
  for (const Ref& value : values) check(PyList_Append(result.get(), value.get()));
  return result;
}

// ---- walking over arguments ----

// Detects containers that a walk over arguments enters a second time. Nearly all arguments are
// small, so containers are recorded only after many steps or at a large depth.
class ArgTrail {
 public:
  // The walk calls this function before it enters `container`. The containers around it are
  // container_at(0) to container_at(open - 1). Returns false if the walk has already left this
  // container once. Raises ValueError if the container contains itself.
  template <class At>
  bool enter(PyObject* container, size_t open, At container_at) {
    constexpr size_t kFreeSteps = 1024;
    constexpr size_t kFreeDepth = 128;
    if (++steps_ <= kFreeSteps && open < kFreeDepth) return true;
    if (!known_) {
      known_ = std::make_unique<SeenContainers>();
      for (size_t i = 0; i < open; ++i) record(container_at(i));
    }
    return record(container);
  }
  void leave(PyObject* container) {
    if (known_) (*known_)[container] = false;
  }
  // Returns whether containers are recorded. Until they are, enter() always returns true.
  bool is_recording() const { return known_ != nullptr; }
  // Must be called before the next walk.
  void clear() {
    steps_ = 0;
    known_.reset();
  }

 private:
  using SeenContainers = std::unordered_map<PyObject*, bool>;  // value: whether the walk is inside

  bool record(PyObject* container) {
    const auto [entry, is_new] = known_->try_emplace(container, true);
    if (!is_new && entry->second) {
      raise(PyExc_ValueError, "an argument of a node contains itself: a %s",
            Py_TYPE(container)->tp_name);
    }
    return is_new;
  }

  size_t steps_ = 0;
  std::unique_ptr<SeenContainers> known_;  // null until needed, because most walks are small
};

// Calls visit(node) for every node in `root`, in the order of torch.fx.map_arg: tuples, lists, dict
// values and slices are entered; other objects are leaves. A container that occurs several times is
// entered at least once. `visit` must not run Python code, except to raise an error, because the
// walk does not own references. Does not recurse.
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
// and named tuples keep their class. Calls `replace(node)`, which returns a borrowed object, for
// the nodes in the order of visit_nodes(). Unchanged immutable containers are shared with the
// original. Does not recurse.
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
        if (trail_.is_recording()) {
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
  // A container whose children are being mapped. Owns the container, because creating a named tuple
  // or hashing a key runs Python code, which may remove the container from its parent.
  struct OpenContainer {
    ArgCursor cursor;         // at the next child to map
    Ref held;                 // owns the container
    Ref key{};                // for dicts: key of the child that is being mapped
    std::vector<Ref> values;  // the mapped children
    std::vector<Ref> keys{};  // for dicts: the keys of `values`
  };
  struct MappedContainer {
    Ref container;  // owned, so that its address is not reused
    Ref value;      // the mapped container
  };

  template <class Replace>
  Ref map_leaf(PyObject* object, Replace& replace) {
    if (Py_TYPE(object) == as_type(symbols.node_type)) return Ref::borrow(replace(object));
    if (arg_kind(object) != ArgKind::kLeaf) return {};
    return is_node(object) ? Ref::borrow(replace(object)) : Ref::borrow(object);
  }

  // Starts to map a container. Returns false if the container is already mapped.
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
  std::unordered_map<PyObject*, MappedContainer> made_;  // by container; set while trail_ records
};

}  // namespace fxpress::fx
