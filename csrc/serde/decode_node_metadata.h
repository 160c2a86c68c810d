// Reads the metadata of nodes, which say where in the source code a node comes from.
#pragma once

#include <string_view>
#include <utility>
#include <vector>

#include "py/object.h"
#include "serde/decoding.h"
#include "serde/text_map.h"

namespace fxpress::serde {

// The metadata of one node by the keys of its meta: for the node itself, and for the nodes that
// take its results.
using NodeMetadata = std::vector<std::pair<PyObject*, Ref>>;

class NodeMetadataDecoder {
 public:
  explicit NodeMetadataDecoder(Decoding& file) : file_(file) {}

  NodeMetadata read(const Value& map);
  // Puts the metadata into a node's meta.
  void add(const NodeMetadata& metadata, PyObject* meta);

 private:
  // An entry of a module stack: its key, and the path and type of the module.
  struct StackEntry {
    Ref key;    // str
    Ref value;  // (path, type)
  };
  Ref module_stack(std::string_view text);
  const StackEntry& stack_entry(std::string_view text);
  Ref source_functions(std::string_view text);
  Ref node_sources(std::string_view text);
  Ref node_sources(const Document& document, const Value& list);
  Ref node_source(const Document& document, const Value& value);

  Decoding& file_;
  TextMap<Ref> stacks_;                // module stacks by text
  TextMap<StackEntry> stack_entries_;  // likewise: the stacks of a layer begin alike
  TextMap<Ref> functions_;             // source functions by text
};

}  // namespace fxpress::serde
