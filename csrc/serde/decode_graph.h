// Graphs: tables, inputs, nodes and outputs.
#pragma once

#include "py/object.h"
#include "serde/decode_argument.h"
#include "serde/decode_node.h"
#include "serde/decode_results.h"
#include "serde/decoding.h"
#include "serde/open_graphs.h"

namespace fxpress::serde {

class GraphDecoder {
 public:
  GraphDecoder(Decoding& file, OpenGraphs& graphs, ArgumentDecoder& arguments,
               ResultDecoder& results, NodeDecoder& nodes)
      : file_(file), graphs_(graphs), arguments_(arguments), results_(results), nodes_(nodes) {}

  // Writes the nodes of a graph into the open graph.
  void write(const Value& graph);
  // Writes the nodes of a graph, and makes a module of the graph.
  Ref graph_module(const Value& graph);

 private:
  void read_tables(const Value& graph);
  void input(const Value& argument, size_t position);
  void outputs(const Value& graph);

  Decoding& file_;
  OpenGraphs& graphs_;
  ArgumentDecoder& arguments_;
  ResultDecoder& results_;
  NodeDecoder& nodes_;
  size_t steps_ = 0;  // nodes read: when to look for signals
};

}  // namespace fxpress::serde
