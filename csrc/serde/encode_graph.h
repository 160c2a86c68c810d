// Graphs: inputs, outputs, nodes and tables.
#pragma once

#include <unordered_set>

#include "py/object.h"
#include "serde/encode_argument.h"
#include "serde/encode_node.h"
#include "serde/encode_values.h"
#include "serde/encoding.h"

namespace fxpress::serde {

class GraphEncoder {
 public:
  GraphEncoder(Encoding& to, ArgumentEncoder& arguments, NodeEncoder& nodes, ValueEncoder& values)
      : to_(to),
        out_(to.out),
        sink_(to.out.sink()),
        arguments_(arguments),
        nodes_(nodes),
        values_(values) {}

  // The graph of a module. Doubtful: with a check in the context, when it may not be valid.
  void graph(PyObject* graph_module);
  // Whether the graph of this module was written.
  bool has_written(PyObject* graph_module) const { return written_.contains(graph_module); }

 private:
  void field(Field field, PyObject* output_value);
  void inputs();
  void input(const NodeEntry& entry);
  void outputs(PyObject* output_value);
  void nodes();
  void table(Table table);

  Encoding& to_;
  SchemaWriter& out_;
  EventSink& sink_;
  ArgumentEncoder& arguments_;
  NodeEncoder& nodes_;
  ValueEncoder& values_;
  std::unordered_set<PyObject*> written_;  // graph modules; with a check only
  size_t depth_ = 0;                       // graphs within each other
};

}  // namespace fxpress::serde
