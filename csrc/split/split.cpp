#include "split/split.h"

#include "fx/edited.h"
#include "fx/symbols.h"
#include "py/gc_pause.h"
#include "split/write.h"

namespace fxpress::split {

using core::NodeId;
using core::Op;
using core::PartitionId;

namespace {

// The nodes that the callback was asked about are those of the graph, and calls have a partition.
bool fits(const std::vector<Ref>& asked, const Assignment& assignment, const fx::ReadGraph& read) {
  bool same = asked.size() == read.nodes.size();
  for (size_t i = 0; same && i < asked.size(); ++i) {
    same = asked[i].get() == read.nodes[i] &&
           assignment.partition[i].valid() == is_call(read.graph.ops[i]);
  }
  return same;
}

void fill_qualname_map(const SplitPlan& plan, PyObject* map) {
  for (uint32_t i = 0; i < plan.source.graph.size(); ++i) {
    if (plan.source.graph.ops[i] != Op::kCallModule) continue;
    const PartitionId p = plan.assignment.partition[i];
    const Ref key = Ref::steal(PyUnicode_FromFormat("%U.%U", plan.submodule_names[p.value()].get(),
                                                    plan.attribute(NodeId(i)).target.get()));
    check(PyObject_SetItem(map, key.get(), plan.source.targets[plan.source.graph.targets[i]]));
  }
}

}  // namespace

Ref split_module(PyObject* module, PyObject* callback, const SplitOptions& options) {
  const Ref graph = get_attr(module, fx::names.graph);
  const std::vector<Ref> nodes = fx::list_nodes(graph.get());
  PartitionMarks marks;
  Assignment assignment = assign_partitions({callback, options.affix, options.debug}, nodes, marks);
  fx::ReadGraph source = fx::read_graph(graph.get(), fx::InputOrder::kArguments);
  if (!fits(nodes, assignment, source)) fx::raise_edited("split_module");
  source.nodes.drop_index();
  const SplitPlan plan = plan_split(module, options, std::move(source), std::move(assignment));
  WrittenSplit written;
  {
    const GcPause pause;
    written = write_split(plan, options);
  }
  for (const Ref& child : written.stale) fx::recompile(child.get());
  if (options.qualname_map != Py_None) fill_qualname_map(plan, options.qualname_map);
  marks.keep();
  return std::move(written.result);
}

}  // namespace fxpress::split
