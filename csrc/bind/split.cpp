#include "split/split.h"

#include "bind/components.h"
#include "split/assign.h"

namespace fxpress::bind {

namespace {

Ref split_module(PyObject* module, PyObject* callback, PyObject* qualname_map,
                 bool keep_original_order, bool keep_original_node_name,
                 bool keep_original_input_name, PyObject* partition_affix, bool tuple_return,
                 bool torch_lazy, PyObject* debug) {
  const split::SplitOptions options{
      qualname_map,
      keep_original_order,
      keep_original_node_name,
      keep_original_input_name,
      tuple_return,
      partition_affix,
      debug,
      torch_lazy ? fx::CodeMode::kTorchLazy : fx::CodeMode::kDeferred,
  };
  return split::split_module(module, callback, options);
}

}  // namespace

void bind_split(py::module_& m) {
  m.def("split_module", split_module, "module"_a, "callback"_a, "qualname_map"_a,
        "keep_original_order"_a, "keep_original_node_name"_a, "keep_original_input_name"_a,
        "partition_affix"_a, "tuple_return"_a, "torch_lazy"_a, "debug"_a, py::pos_only(),
        "Implement torch.fx.passes.split_module.split_module; `torch_lazy`: torch generates code.");
  m.def("submodule_name", split::submodule_name, "partition"_a, py::pos_only(),
        "Return the name of the submodule of a partition.");
  m.def("split_module_simple", split::split_module_simple, "module"_a, "node_to_partition"_a,
        "affix"_a, py::pos_only(), "Implement torch.fx.passes.split_module.split_module_simple.");
  m.def("detect_dependencies", split::detect_dependencies, "module"_a, "node_to_partition"_a,
        py::pos_only(),
        "Return (graphs, inputs, outputs, ordered partitions), like torch's _detect_dependencies.");
  m.def("clone_nodes_into_partitions", split::clone_nodes_into_partitions, "module"_a, "graphs"_a,
        "inputs"_a, "outputs"_a, "partitions"_a, py::pos_only(),
        "Complete the graphs, and return each partition's clones by original node.");
  m.def("build_stitching_graph", split::build_stitching_graph, "module"_a, "graphs"_a, "inputs"_a,
        "outputs"_a, "partitions"_a, "affix"_a, py::pos_only(),
        "Return the module that calls the partitions.");
  m.def("make_lite_graph_module", fx::make_lite_graph_module, "graph"_a, "modules"_a,
        py::pos_only(),
        "Return a GraphModule with this graph and these children, which are not copied.");
}

}  // namespace fxpress::bind
