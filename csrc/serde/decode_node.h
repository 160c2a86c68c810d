// Nodes that call something.
#pragma once

#include <span>

#include "py/object.h"
#include "serde/decode_argument.h"
#include "serde/decode_node_metadata.h"
#include "serde/decode_results.h"
#include "serde/decoding.h"
#include "serde/open_graphs.h"

namespace fxpress::serde {

class NodeDecoder {
 public:
  NodeDecoder(Decoding& file, OpenGraphs& graphs, ArgumentDecoder& arguments,
              ResultDecoder& results, NodeMetadataDecoder& metadata)
      : file_(file),
        graphs_(graphs),
        arguments_(arguments),
        results_(results),
        metadata_(metadata) {}

  // Adds a node to the open graph. SerializeError, which shows the node, when it cannot be read.
  void checked_node(const Value& value);
  // Adds a node whose target is known; errors are passed on as they are.
  PyObject* node(const Value& value, const Target& target);
  // The arguments of a node: returns the positional ones.
  Ref arguments(std::span<const Value> inputs, const Target& target, Ref& kwargs);

 private:
  Ref schema_arguments(std::span<const Value> inputs, const Target& target, Ref& kwargs);
  Ref other_arguments(std::span<const Value> inputs, const Target& target, Ref& kwargs);
  int64_t kind_of(const Value& input) const;
  core::StringId candidate_of(const Value& node, const Target& target);

  Decoding& file_;
  OpenGraphs& graphs_;
  ArgumentDecoder& arguments_;
  ResultDecoder& results_;
  NodeMetadataDecoder& metadata_;
};

}  // namespace fxpress::serde
