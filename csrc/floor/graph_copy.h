// A graph read once and written as often as one likes.
#pragma once

#include "fx/graph_module.h"
#include "fx/reader.h"

namespace fxpress::floor {

// Holds what is needed to create a graph's nodes again; the graph must not change meanwhile.
class GraphCopier {
 public:
  explicit GraphCopier(PyObject* graph);

  // A new graph with the same nodes, names, arguments and metadata (shallow copies).
  Ref copy() const;

  // A new GraphModule with such a graph, which refers to the attributes of `owner`.
  Ref copy_module(PyObject* owner, fx::CodeMode mode) const;

  size_t size() const { return source_.graph.size(); }

 private:
  fx::ReadGraph source_;    // the graph, flat
  std::vector<Ref> names_;  // by node
  std::vector<Ref> types_;  // by node: its annotation, or None
};

}  // namespace fxpress::floor
