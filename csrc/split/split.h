// Implements torch.fx.passes.split_module: split_module() assigns nodes to partitions
// (split/assign.h), plans the graphs, and writes them.
#pragma once

#include <memory>
#include <vector>

#include "fx/graph_module.h"
#include "fx/reader.h"
#include "fx/symbols.h"
#include "py/calls.h"
#include "py/object.h"
#include "split/assign.h"
#include "split/plan/partition.h"

namespace fxpress::split {

struct SplitOptions {
  PyObject* qualname_map;         // dict to fill, or None
  bool keep_original_order;       // call partitions in order of first appearance
  bool keep_original_node_name;   // clones keep their names
  bool keep_original_input_name;  // placeholders have the names of the values, not arg_<i>
  bool tuple_return;              // single outputs are returned in a tuple too
  PyObject* affix;                // str or None
  PyObject* debug;                // logger.debug, or None
  fx::CodeMode code_mode;         // how the code of the results is generated
};

// The decisions of a split, made before any object is created.
struct SplitPlan {
  Assignment assignment;                     // the results of the callback
  fx::ReadGraph source;                      // the original graph, flat
  std::unique_ptr<Partitioning> partitions;  // inputs and outputs of the partitions
  std::vector<core::PartitionId> order;      // order in which the base graph calls the partitions
  std::vector<Ref> submodule_names;          // by partition: "submod_0", ...

  // The object to which a get_attr or call_module node refers. A graph has few of these nodes, so a
  // map stores the objects.
  struct Attribute {
    Ref value;   // the object
    Ref target;  // call_module: the object's name in the partition's module
  };
  core::FlatMap attribute_index;      // node -> position in attributes
  std::vector<Attribute> attributes;  // by position in attribute_index

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

// Creates the meta of the getitem nodes that unpack a partition's outputs. torch creates these
// nodes by tracing, so they have meta inside torch.fx.traceback.preserve_node_meta().
// symbols.current_node_meta is called once in a split, for the first of these nodes.
class CurrentMeta {
 public:
  // Returns a new dict, or an empty Ref.
  Ref fresh() {
    if (!meta_) meta_ = call(fx::symbols.current_node_meta);
    return meta_.get() == Py_None ? Ref() : Ref::steal(PyDict_Copy(meta_.get()));
  }

 private:
  Ref meta_;  // a dict, or None; empty before the first fresh()
};

struct WrittenSplit {
  Ref result;              // the module that calls the partitions' modules
  std::vector<Ref> stale;  // GraphModules below `result` that need a recompile()
};

// Creates the objects that the plan describes. Generates no code.
WrittenSplit write_split(const SplitPlan& plan, const SplitOptions& options);

Ref split_module(PyObject* module, PyObject* callback, const SplitOptions& options);

// ---- split_module_simple, and its separate steps ----

// Runs all steps. After an error, the nodes have their old marks.
Ref split_module_simple(PyObject* module, PyObject* node_to_partition, PyObject* affix);

// _detect_dependencies: returns (graphs, inputs, outputs, partitions in order of first appearance).
Ref detect_dependencies(PyObject* module, PyObject* node_to_partition);

// _clone_nodes_into_partitions: completes the graphs; returns {partition: {node: its clone}}.
Ref clone_nodes_into_partitions(PyObject* module, PyObject* graphs, PyObject* inputs,
                                PyObject* outputs, PyObject* partitions);

// _build_stitching_graph: returns the module that calls the partitions.
Ref build_stitching_graph(PyObject* module, PyObject* graphs, PyObject* inputs, PyObject* outputs,
                          PyObject* partitions, PyObject* affix);

}  // namespace fxpress::split
