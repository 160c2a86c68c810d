// Reads a torch.fx.Graph into a core::Graph. Never modifies the torch.fx.Graph.
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
  core::Graph graph;    // the nodes as integers
  ObjectTable nodes;    // index: NodeId
  ObjectTable targets;  // index: ObjectId in graph.targets
};

enum class InputOrder : uint8_t {
  // each occurrence of a node in args and then in kwargs, in the order of torch.fx.map_arg. In an
  // output node, only the first argument counts, which the graph returns
  kArguments,
  kInputNodes,  // each input once, in the order of Node.all_input_nodes
};

// Raises RuntimeError, because other code has edited the graph during the call.
[[noreturn]] inline void raise_edited() {
  raise(PyExc_RuntimeError,
        "graph was modified during the call, by a callback, a hook, a signal handler or another "
        "thread: edit it before or after");
}

// Calls visit(node) for each node of the linked list that starts and ends at `root`. visit() must
// not run Python code, which might change the list. Calls raise_edited() if the links lead into
// another graph, or into a cycle without `root`, in which the walk would not end.
template <class Visit>
void walk_nodes(PyObject* root, Visit visit) {
  const Ref root_op = node_field(root, symbols.node_op);
  PyObject* earlier = root;  // an earlier node, which a walk in a cycle reaches again
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

// Reads the graph. Raises KeyError if an argument is a node of another graph. With
// InputOrder::kArguments, raises IndexError if an output node has no argument.
ReadGraph read_graph(PyObject* graph, InputOrder order);

// Returns 1 for each node that torch.fx.Graph.eliminate_dead_code would erase, because it is pure
// and has no users. Returns 0 for other nodes. Calls `Node.is_impure`.
std::vector<uint8_t> find_dead_nodes(const ReadGraph& source);

// ---- detecting graphs that are edited during a call ----

// The nodes of a graph and their fields at the time of construction.
class Snapshot {
 public:
  explicit Snapshot(PyObject* graph);
  // Returns whether the graph still has the same nodes with the same fields.
  bool is_current() const;

 private:
  using Fields = std::array<Ref, 6>;  // the node, its op, target, args, kwargs and name

  static Fields fields_of(PyObject* node);

  Ref graph_;
  std::vector<Fields> nodes_;  // in graph order
};

// Calls work(), which reads the graph. Calls raise_edited() if the graph has changed by then, even
// if work() has thrown an exception.
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

// Returns the inputs that a node had when it was read, one by one, during a walk over its current
// arguments. Calls raise_edited() if the arguments have changed.
template <class Id>
class InputCursor {
 public:
  explicit InputCursor(std::span<const Id> inputs) : inputs_(inputs) {}

  Id next() {
    if (at_ == inputs_.size()) raise_edited();
    return inputs_[at_++];
  }
  // Like next(), but calls raise_edited() if the input is not `node`. nodes: all nodes by id.
  Id next(const ObjectTable& nodes, PyObject* node) {
    const Id id = next();
    if (nodes[id.value()] != node) raise_edited();
    return id;
  }
  // Must be called after the walk. Calls raise_edited() if inputs are left.
  void finish() const {
    if (at_ != inputs_.size()) raise_edited();
  }

 private:
  std::span<const Id> inputs_;  // inputs when the node was read, in the order of the walk
  size_t at_ = 0;               // index of the next input
};

}  // namespace fxpress::fx
