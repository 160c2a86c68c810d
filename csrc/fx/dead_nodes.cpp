#include "fx/dead_nodes.h"

#include "fx/symbols.h"

namespace fxpress::fx {

using core::NodeId;
using core::Op;

std::vector<uint8_t> find_dead_nodes(const ReadGraph& source) {
  const core::Graph& graph = source.graph;
  std::vector<uint8_t> dead(graph.size(), 0);
  std::vector<uint32_t> uses(graph.size(), 0);
  for (NodeId def : graph.inputs) ++uses[def.value()];
  for (size_t i = graph.size(); i-- > 0;) {
    if (uses[i] > 0 || graph.ops[i] == Op::kPlaceholder || graph.ops[i] == Op::kOutput) continue;
    const Ref impure = Ref::steal(PyObject_CallMethodNoArgs(source.nodes[i], names.is_impure));
    const int has_effect = PyObject_IsTrue(impure.get());
    check(has_effect);
    if (has_effect == 1) continue;
    dead[i] = 1;
    for (NodeId def : graph.inputs_of(NodeId(i))) --uses[def.value()];
  }
  return dead;
}

}  // namespace fxpress::fx
