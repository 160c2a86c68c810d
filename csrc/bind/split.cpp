#include "split/split.h"

#include "bind/components.h"
#include "split/assign.h"

namespace fxpress::bind {

namespace {

py::object split_module(const py::handle& module, const py::handle& callback,
                        const py::handle& qualname_map, bool keep_original_order,
                        bool keep_original_node_name, bool keep_original_input_name,
                        const py::handle& partition_affix, bool tuple_return, bool torch_lazy,
                        const py::handle& debug) {
  const split::SplitOptions options{
      qualname_map.ptr(),
      keep_original_order,
      keep_original_node_name,
      keep_original_input_name,
      tuple_return,
      partition_affix.ptr(),
      debug.ptr(),
      torch_lazy ? fx::CodeMode::kTorchLazy : fx::CodeMode::kDeferred,
  };
  return to_object(split::split_module(module.ptr(), callback.ptr(), options));
}

}  // namespace

void bind_split(py::module_& m) {
  m.def("split_module", split_module, "module"_a, "callback"_a, "qualname_map"_a,
        "keep_original_order"_a, "keep_original_node_name"_a, "keep_original_input_name"_a,
        "partition_affix"_a, "tuple_return"_a, "torch_lazy"_a, "debug"_a, py::pos_only(),
        "Implement torch.fx.passes.split_module.split_module; `torch_lazy`: torch generates code.");
  m.def(
      "submodule_name",
      [](const py::handle& partition) { return to_object(split::submodule_name(partition.ptr())); },
      "partition"_a, py::pos_only(), "Return the name of the submodule of a partition.");
  m.def(
      "split_module_simple",
      [](const py::handle& module, const py::handle& node_to_partition, const py::handle& affix) {
        return to_object(
            split::split_module_simple(module.ptr(), node_to_partition.ptr(), affix.ptr()));
      },
      "module"_a, "node_to_partition"_a, "affix"_a, py::pos_only(),
      "Implement torch.fx.passes.split_module.split_module_simple.");
  m.def(
      "detect_dependencies",
      [](const py::handle& module, const py::handle& node_to_partition) {
        return to_object(split::detect_dependencies(module.ptr(), node_to_partition.ptr()));
      },
      "module"_a, "node_to_partition"_a, py::pos_only(),
      "Return (graphs, inputs, outputs, ordered partitions), like torch's _detect_dependencies.");
  m.def(
      "clone_nodes_into_partitions",
      [](const py::handle& module, const py::handle& graphs, const py::handle& inputs,
         const py::handle& outputs, const py::handle& partitions) {
        return to_object(split::clone_nodes_into_partitions(
            module.ptr(), graphs.ptr(), inputs.ptr(), outputs.ptr(), partitions.ptr()));
      },
      "module"_a, "graphs"_a, "inputs"_a, "outputs"_a, "partitions"_a, py::pos_only(),
      "Complete the graphs, and return each partition's clones by original node.");
  m.def(
      "build_stitching_graph",
      [](const py::handle& module, const py::handle& graphs, const py::handle& inputs,
         const py::handle& outputs, const py::handle& partitions, const py::handle& affix) {
        return to_object(split::build_stitching_graph(module.ptr(), graphs.ptr(), inputs.ptr(),
                                                      outputs.ptr(), partitions.ptr(),
                                                      affix.ptr()));
      },
      "module"_a, "graphs"_a, "inputs"_a, "outputs"_a, "partitions"_a, "affix"_a, py::pos_only(),
      "Return the module that calls the partitions.");
  m.def(
      "make_lite_graph_module",
      [](const py::handle& graph, const py::handle& modules) {
        return to_object(fx::make_lite_graph_module(graph.ptr(), modules.ptr()));
      },
      "graph"_a, "modules"_a, py::pos_only(),
      "Return a GraphModule with the graph and these modules, which are not copied.");
}

}  // namespace fxpress::bind
