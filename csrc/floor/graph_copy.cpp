#include "floor/graph_copy.h"

#include "core/check.h"
#include "fx/attributes.h"
#include "fx/symbols.h"
#include "fx/writer.h"
#include "py/gc_pause.h"

namespace fxpress::floor {

using core::NodeId;
using core::Op;

GraphCopier::GraphCopier(PyObject* graph)
    : source_(fx::read_graph(graph, fx::InputOrder::kArguments)) {
  for (size_t i = 0; i < source_.graph.size(); ++i) {
    names_.push_back(fx::node_field(source_.nodes[i], fx::symbols.node_name));
    types_.push_back(fx::node_field(source_.nodes[i], fx::symbols.node_type_expr));
  }
}

Ref GraphCopier::copy() const {
  const GcPause pause;
  fx::NameWriter name_writer(fx::NameWriter::Forbidden::kForNodes);
  fx::GraphWriter writer(name_writer);
  const core::Graph& flat = source_.graph;
  std::vector<PyObject*> copies(flat.size());
  for (uint32_t i = 0; i < flat.size(); ++i) {
    poll_signals(i);
    const fx::NewNode node = {flat.ops[i], source_.targets[flat.targets[i]],
                              name_writer.candidate(names_[i].get()), types_[i].get()};
    uint32_t use = flat.input_begin[i];
    copies[i] = writer.copy(node, source_.nodes[i], [&](PyObject*) {
      FXPRESS_CHECK(use < flat.input_begin[i + 1], "an output with more than one argument");
      return copies[flat.inputs[use++].value()];
    });
  }
  writer.finish();
  return Ref::borrow(writer.graph());
}

Ref GraphCopier::copy_module(PyObject* owner, fx::CodeMode mode) const {
  const Ref graph = copy();
  const GcPause pause;
  fx::ModuleAttributes attributes;
  std::vector<Ref> values;
  fx::AttributePaths paths(owner);
  for (size_t i = 0; i < source_.graph.size(); ++i) {
    if (source_.graph.ops[i] != Op::kGetAttr && source_.graph.ops[i] != Op::kCallModule) continue;
    PyObject* target = source_.targets[source_.graph.targets[i]];
    values.push_back(paths.resolve(target));
    attributes.emplace_back(target, values.back().get());
  }
  return fx::make_graph_module(attributes, graph.get(), mode);
}

}  // namespace fxpress::floor
