// torch.fx.passes.split_module.split_module_simple, and its steps, each usable on its own.
#pragma once

#include "py/object.h"

namespace fxpress::split {

// All steps; after an error the marks on the nodes are as they were.
Ref split_module_simple(PyObject* module, PyObject* node_to_partition, PyObject* affix);

// _detect_dependencies: (graphs, inputs, outputs, partitions in order of first appearance).
Ref detect_dependencies(PyObject* module, PyObject* node_to_partition);

// _clone_nodes_into_partitions: {partition: {original node: its clone}}; completes the graphs.
Ref clone_nodes_into_partitions(PyObject* module, PyObject* graphs, PyObject* inputs,
                                PyObject* outputs, PyObject* partitions);

// _build_stitching_graph: the module that calls the partitions.
Ref build_stitching_graph(PyObject* module, PyObject* graphs, PyObject* inputs, PyObject* outputs,
                          PyObject* partitions, PyObject* affix);

}  // namespace fxpress::split
