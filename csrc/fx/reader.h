// Reads a torch.fx.Graph into the flat graph. Never writes to the torch.fx.Graph.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "core/graph.h"
#include "py/object_table.h"

namespace fxpress::fx {

struct ReadGraph {
  core::Graph graph;    // inputs refer to nodes by position in graph order
  ObjectTable nodes;    // by NodeId
  ObjectTable targets;  // by the ids in graph.targets
};

enum class InputOrder : uint8_t {
  kArguments,   // every mention, in the order of map_arg over args and kwargs; of an output only
                // its first argument, which is what the graph returns
  kInputNodes,  // each input once, in the order of Node.all_input_nodes
};

// The nodes of the list that starts at the graph's root, erased ones left out: owned references.
std::vector<Ref> list_nodes(PyObject* graph);

// Reads the whole graph. KeyError when an argument is a node that is not in the graph; IndexError
// when the arguments of an output are asked for and it has none.
ReadGraph read_graph(PyObject* graph, InputOrder order);

// By node: 1 for those without effect or user, which torch.fx.Graph.eliminate_dead_code would
// erase. Calls `Node.is_impure`.
std::vector<uint8_t> find_dead_nodes(const ReadGraph& source);

// ---- graphs that are edited meanwhile ----

// Callbacks, hooks, the methods of objects in a graph and other threads may edit a graph after it
// was read; a second walk of its nodes notices this. `function`: what the user called.
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
