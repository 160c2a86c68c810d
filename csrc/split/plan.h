// Second phase of a split: everything is decided, nothing is made.
#pragma once

#include <memory>
#include <vector>

#include "fx/graph_module.h"
#include "fx/reader.h"
#include "split/assign.h"
#include "split/plan/partition.h"

namespace fxpress::split {

struct SplitOptions {
  PyObject* qualname_map;         // dict to fill, or None
  bool keep_original_order;       // call partitions in order of first appearance
  bool keep_original_node_name;   // clones keep their names
  bool keep_original_input_name;  // placeholders are named after the values, not arg_<i>
  bool tuple_return;              // single outputs are wrapped in a tuple too
  PyObject* affix;                // str or None
  PyObject* debug;                // logger.debug, or None
  fx::CodeMode code_mode;         // how the results get their Python code
};

// The decisions of a split, all made before the first object.
struct SplitPlan {
  Assignment assignment;                     // from the callback
  fx::ReadGraph source;                      // the graph, flat
  std::unique_ptr<Partitioning> partitions;  // who needs what
  std::vector<core::PartitionId> order;      // in which the base graph calls them
  std::vector<Ref> submodule_names;          // by partition: "submod_0", ...

  // The object that a get_attr or call_module node names. A graph has few such nodes.
  struct Attribute {
    Ref value;   // the object
    Ref target;  // call_module: its name in its partition
  };
  core::FlatMap attribute_index;      // node -> position in attributes
  std::vector<Attribute> attributes;  // of the nodes that need one

  Attribute& attribute(core::NodeId node) {
    const auto fresh = static_cast<uint32_t>(attributes.size());
    const auto [position, added] = attribute_index.insert(node.value(), fresh);
    if (added) attributes.emplace_back();
    return attributes[position];
  }
  const Attribute& attribute(core::NodeId node) const {
    return attributes[attribute_index.find(node.value())];
  }
};

// Decides everything and raises every error of the input; changes nothing.
SplitPlan plan_split(PyObject* module, const SplitOptions& options, fx::ReadGraph source,
                     Assignment assignment);

}  // namespace fxpress::split
