// Decodes the results of nodes: values with names of the file, which are those of the node itself
// or of other nodes that take them from it.
#pragma once

#include <span>
#include <string_view>

#include "py/object.h"
#include "serde/decode_node_metadata.h"
#include "serde/decode_values.h"
#include "serde/decoding.h"
#include "serde/open_graphs.h"

namespace fxpress::serde {

class ResultDecoder {
 public:
  ResultDecoder(Decoding& file, OpenGraphs& graphs, ValueDecoder& values,
                NodeMetadataDecoder& metadata)
      : file_(file), graphs_(graphs), values_(values), metadata_(metadata) {}

  // Decodes the results of a node: its own value, or several that other nodes take from it.
  void results(const Value& value, const Target& target, PyObject* node,
               const NodeMetadata& metadata);
  // Other nodes take the results, also when there are none.
  void multiple_results(std::span<const Value> parts, PyObject* node, const NodeMetadata& metadata);
  // Adds the nodes that take one of several results; returns its value.
  Ref take(PyObject* node, size_t index, const Value& part, const NodeMetadata& metadata);

  // Gives a node the name it has in the file, and its value. The namespace of the graph keeps the
  // name that the node was made with, as in torch.
  void name_node(PyObject* node, std::string_view name);

  // The only result of a higher-order operator may be the value itself, or a tuple with it. Old
  // files don't say: there it is the value.
  bool returns_itself(const Value& node) const;

 private:
  PyObject* getitem(PyObject* node, size_t index, core::StringId candidate);
  Ref take_apart(PyObject* node, std::span<const Value> parts, const NodeMetadata& metadata);
  void name_unused(PyObject* node);
  static void set_value(PyObject* node, PyObject* value);

  Decoding& file_;
  OpenGraphs& graphs_;
  ValueDecoder& values_;
  NodeMetadataDecoder& metadata_;
};

}  // namespace fxpress::serde
