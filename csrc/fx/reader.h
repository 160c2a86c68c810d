// Reads a torch.fx.Graph into the flat graph. Never writes to the torch.fx.Graph.
#pragma once

#include <array>
#include <cstdint>
#include <span>
#include <vector>

#include "core/graph.h"
#include "fx/symbols.h"
#include "py/object_table.h"

namespace fxpress::fx {

struct ReadGraph {
  core::Graph graph;    // inputs refer to nodes by position in graph order
  ObjectTable nodes;    // by NodeId
  ObjectTable targets;  // by the ids in graph.targets
};

enum class InputOrder : uint8_t {
  kArguments,   // every mention, in the order of map_arg over args and kwargs; in an output node
                // only mentions in the first argument, which the graph returns
  kInputNodes,  // each input once, in the order of Node.all_input_nodes
};

// Raised when other code has edited the graph during the call.
[[noreturn]] inline void raise_edited() {
  raise(PyExc_RuntimeError,
        "graph was modified during the call, by a callback, a hook, a signal handler or another "
        "thread: edit it before or after");
}

// Calls visit(node) for each node of the linked ring that starts and ends at `root`. visit() must
// not run Python code, which might change the ring. Calls raise_edited() when the links lead into
// the ring of another graph or into a cycle without the root, where the walk would not end.
template <class Visit>
void walk_nodes(PyObject* root, Visit visit) {
  const Ref root_op = node_field(root, symbols.node_op);
  PyObject* earlier = root;  // reached again in a cycle without the root (Brent's algorithm)
  Ref node = node_field(root, symbols.node_next);
  for (size_t step = 1; node.get() != root; ++step) {
    if (node.get() == earlier || !is_node(node.get()) ||
        node_field(node.get(), symbols.node_op).get() == root_op.get()) {
      raise_edited();
    }
    if ((step & (step - 1)) == 0) earlier = node.get();
    visit(node.get());
    node = node_field(node.get(), symbols.node_next);
  }
}

// Returns owned references to the nodes of a graph that are not erased.
std::vector<Ref> list_nodes(PyObject* graph);

// Reads the graph. KeyError when an argument is a node that is not in the graph; IndexError, with
// InputOrder::kArguments, when an output has no arguments.
ReadGraph read_graph(PyObject* graph, InputOrder order);

// Returns for each node 1 if torch.fx.Graph.eliminate_dead_code would erase it, because it has
// neither an effect nor a user. Calls `Node.is_impure`.
std::vector<uint8_t> find_dead_nodes(const ReadGraph& source);

// ---- graphs that are edited during a call ----

// The nodes of a graph and their fields at one time.
class Snapshot {
 public:
  explicit Snapshot(PyObject* graph);
  // Whether the graph still has the nodes of the snapshot, with the same fields.
  bool is_current() const;

 private:
  using Fields = std::array<Ref, 6>;  // the node; its op, target, args, kwargs and name

  static Fields fields_of(PyObject* node);

  Ref graph_;
  std::vector<Fields> nodes_;  // in order
};

// Calls work(), which reads the graph. If the graph has changed during work(), calls
// raise_edited(), even when work() has thrown an Exception.
template <class Work>
void on_unchanged(PyObject* graph, Work work) {
  const Snapshot before(graph);
  try {
    work();
  } catch (pybind11::error_already_set& error) {
    if (!error.matches(PyExc_Exception) || before.is_current()) throw;
    raise_edited();
  }
  if (!before.is_current()) raise_edited();
}

// Yields the inputs of a node, as they were read, one by one during a walk over its current
// arguments. Calls raise_edited() when the arguments have changed since.
template <class Id>
class InputCursor {
 public:
  explicit InputCursor(std::span<const Id> inputs) : inputs_(inputs) {}

  Id next() {
    if (at_ == inputs_.size()) raise_edited();
    return inputs_[at_++];
  }
  // Like next(), but calls raise_edited() if the input is not `node`. `nodes`: by id.
  Id next(const ObjectTable& nodes, PyObject* node) {
    const Id id = next();
    if (nodes[id.value()] != node) raise_edited();
    return id;
  }
  // Called at the end of the walk; raises if inputs are left.
  void finish() const {
    if (at_ != inputs_.size()) raise_edited();
  }

 private:
  std::span<const Id> inputs_;  // the inputs as they were read, in visiting order
  size_t at_ = 0;               // position of the next input
};

}  // namespace fxpress::fx
