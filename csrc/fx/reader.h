// Reads a torch.fx.Graph into the flat graph. Never writes to the torch.fx.Graph.
#pragma once

#include <vector>

#include "core/graph.h"
#include "py/object.h"
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

}  // namespace fxpress::fx
