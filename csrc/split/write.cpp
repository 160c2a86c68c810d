#include <algorithm>

#include "core/check.h"
#include "fx/arguments.h"
#include "fx/attributes.h"
#include "fx/reader.h"
#include "fx/symbols.h"
#include "fx/writer.h"
#include "split/split.h"

namespace fxpress::split {

using core::Op;

namespace {

// The data that the writers of the partitions and of the base graph share.
struct Context {
  const SplitPlan& plan;
  const SplitOptions& options;
  fx::NameWriter& names;
  std::vector<Ref>& stale;  // see WrittenSplit::stale

  const core::Graph& graph() const { return plan.source.graph; }
  PyObject* node(NodeId id) const { return plan.source.nodes[id.value()]; }
  PyObject* target(NodeId id) const { return plan.source.targets[graph().targets[id.value()]]; }
  PyObject* attribute(NodeId id) const { return plan.attribute(id).value.get(); }
  const Partition& partition(PartitionId p) const {
    return plan.partitions->partitions()[p.value()];
  }
  Ref finish_module(const fx::ModuleAttributes& attributes, PyObject* written) {
    Ref module = fx::make_graph_module(attributes, written, options.code_mode);
    if (options.code_mode == fx::CodeMode::kDeferred)
      fx::list_children_with_code(module.get(), stale);
    return module;
  }
  // Whether a node is a get_attr of a module (the body of a higher-order operator). Each partition
  // that uses the module repeats the node, because graphs do not pass modules to each other.
  bool is_module_attribute(NodeId id) const {
    return graph().ops[id.value()] == Op::kGetAttr && fx::is_module(attribute(id));
  }
};

class PartitionWriter {
 public:
  PartitionWriter(Context& context, std::vector<PyObject*>& clones, PartitionId partition)
      : context_(context),
        clones_(clones),
        partition_(partition),
        inputs_(context.partition(partition).inputs),
        writer_(context.names) {}

  Ref run() {
    enter_state();
    write_inputs();
    for (NodeId id : context_.partition(partition_).nodes) write_node(id);
    leave_state();
    write_output();
    writer_.finish();
    return context_.finish_module(attributes_, writer_.graph());
  }

 private:
  // Starts the partition with the switches of regions that began in earlier partitions.
  void enter_state() {
    for (const auto* regions :
         {&context_.plan.assignment.autocast, &context_.plan.assignment.grad}) {
      for (const StateRegion& region : *regions) {
        const auto later = region.partitions.begin() + 1;
        if (std::find(later, region.partitions.end(), partition_) == region.partitions.end()) {
          continue;
        }
        PyObject* original = context_.node(region.enter);
        const Ref type_expr = fx::node_field(original, fx::symbols.node_type_expr);
        const fx::NewNode node = call_of(context_.target(region.enter), type_expr.get());
        PyObject* clone =
            writer_.leaf(node, fx::args_of(original), fx::GraphWriter::copy_meta(original));
        entered_.emplace_back(region.enter, clone);
      }
    }
  }

  // Exits each autocast region that continues in a later partition, innermost regions first.
  void leave_state() {
    const auto& regions = context_.plan.assignment.autocast;
    for (auto region = regions.rbegin(); region != regions.rend(); ++region) {
      const auto last = region->partitions.end() - 1;
      if (std::find(region->partitions.begin(), last, partition_) == last) continue;
      PyObject* original = context_.node(region->exit);
      const Ref type_expr = fx::node_field(original, fx::symbols.node_type_expr);
      PyObject* enter = state_node(region->enter, region->exit);
      Ref args = Ref::steal(PyTuple_Pack(1, enter));
      writer_.create(call_of(context_.target(region->exit), type_expr.get()), std::move(args),
                     Ref::borrow(fx::no_kwargs), {&enter, 1}, fx::GraphWriter::copy_meta(original));
    }
  }

  fx::NewNode call_of(PyObject* target, PyObject* type_expr) {
    return {Op::kCallFunction, target, context_.names.candidate_for_target(target), type_expr};
  }

  void write_inputs() {
    input_nodes_.assign(inputs_.size(), nullptr);
    size_t counter = 0;
    for (size_t slot = 0; slot < inputs_.size(); ++slot) {
      if (context_.is_module_attribute(inputs_[slot])) continue;
      PyObject* original = context_.node(inputs_[slot]);
      const Ref name = context_.options.keep_original_input_name
                           ? fx::node_field(original, fx::symbols.node_name)
                           : Ref::steal(PyUnicode_FromFormat("arg_%zu", counter++));
      input_nodes_[slot] = writer_.placeholder_like(original, name.get(), Ref::borrow(fx::no_args));
    }
    for (size_t slot = 0; slot < inputs_.size(); ++slot) {
      const NodeId id = inputs_[slot];
      if (!context_.is_module_attribute(id)) continue;
      PyObject* target = context_.target(id);
      input_nodes_[slot] = writer_.get_attr_like(context_.node(id), target);
      attributes_.emplace_back(target, context_.attribute(id));
    }
  }

  void write_node(NodeId id) {
    poll_signals(id.value());
    PyObject* original = context_.node(id);
    PyObject* target = context_.target(id);
    const Op op = context_.graph().ops[id.value()];
    if (op == Op::kCallModule) {
      target = context_.plan.attribute(id).target.get();
      attributes_.emplace_back(target, context_.attribute(id));
    }
    Ref name;
    if (context_.options.keep_original_node_name)
      name = fx::node_field(original, fx::symbols.node_name);
    const core::StringId candidate =
        name ? context_.names.candidate(name.get()) : context_.names.candidate_for_target(target);
    const Ref type_expr = fx::node_field(original, fx::symbols.node_type_expr);
    const fx::NewNode node = {op, target, candidate, type_expr.get()};
    uint32_t use = context_.graph().input_begin[id.value()];
    clones_[id.value()] = writer_.copy_node(node, context_.plan.source, id,
                                            [&](NodeId def) { return input_of(id, def, use++); });
  }

  // Returns the node for `def` in this partition's graph. `use`: the use's index in graph.inputs.
  PyObject* input_of(NodeId user, NodeId def, uint32_t use) const {
    const uint32_t slot = context_.plan.partitions->input_slots()[use];
    if (slot != Partitioning::kLocal) return input_nodes_[slot];
    if (context_.plan.assignment.partition[def.value()] == partition_) return clones_[def.value()];
    return state_node(def, user);
  }

  // Returns this partition's clone of `enter`, a node that enters the region that `user` exits.
  PyObject* state_node(NodeId enter, NodeId user) const {
    if (context_.plan.assignment.partition[enter.value()] == partition_) {
      return clones_[enter.value()];
    }
    for (const auto& [id, clone] : entered_) {
      if (id == enter) return clone;
    }
    raise(PyExc_KeyError, "node %R, an argument of %R, is not in the same partition",
          context_.node(enter), context_.node(user));
  }

  void write_output() {
    std::vector<PyObject*> values;
    for (NodeId id : context_.partition(partition_).outputs) values.push_back(clones_[id.value()]);
    writer_.output_of(values, values.size() != 1 || context_.options.tuple_return);
  }

  Context& context_;
  std::vector<PyObject*>& clones_;     // by node of the original graph: its clone; borrowed
  const PartitionId partition_;        // the partition whose graph is written
  const std::vector<NodeId>& inputs_;  // inputs of the partition, by slot
  fx::GraphWriter writer_;
  std::vector<PyObject*> input_nodes_;  // placeholders and get_attrs, by slot; borrowed
  std::vector<std::pair<NodeId, PyObject*>> entered_;  // (enter node of a region, its clone)
  fx::ModuleAttributes attributes_;                    // the attributes that the graph uses
};

class BaseWriter {
 public:
  // `values`: one null for each node of the original graph.
  BaseWriter(Context& context, std::span<const Ref> submodules, std::vector<PyObject*>& values)
      : context_(context), submodules_(submodules), writer_(context.names), values_(values) {}

  Ref run() {
    if (!context_.options.keep_original_order || context_.plan.order.empty()) {
      for (uint32_t i = 0; i < context_.graph().size(); ++i) import(NodeId(i));
    }
    for (PartitionId p : context_.plan.order) {
      if (context_.options.keep_original_order) import_for(p);
      call(p);
    }
    write_output();
    writer_.finish();
    return context_.finish_module(attributes_, writer_.graph());
  }

 private:
  // Imports a partition's inputs. The first call imports all placeholders to keep their order.
  void import_for(PartitionId p) {
    if (!placeholders_done_) import_placeholders();
    for (NodeId id : context_.partition(p).inputs) {
      if (!context_.is_module_attribute(id)) import(id);
    }
  }

  void import_placeholders() {
    placeholders_done_ = true;
    for (uint32_t i = 0; i < context_.graph().size(); ++i) {
      if (context_.graph().ops[i] == Op::kPlaceholder) import(NodeId(i));
    }
  }

  // Writes a placeholder or get_attr node of the original graph, unless it is written already.
  void import(NodeId id) {
    if (values_[id.value()] != nullptr) return;
    PyObject* original = context_.node(id);
    if (context_.graph().ops[id.value()] == Op::kPlaceholder) {
      const Ref target = context_.options.keep_original_node_name
                             ? fx::node_field(original, fx::symbols.node_name)
                             : Ref::borrow(context_.target(id));
      values_[id.value()] =
          writer_.placeholder_like(original, target.get(), default_value(original));
    } else if (context_.graph().ops[id.value()] == Op::kGetAttr) {
      PyObject* target = context_.target(id);
      values_[id.value()] = writer_.get_attr_like(original, target);
      attributes_.emplace_back(target, context_.attribute(id));
    }
  }

  static Ref default_value(PyObject* placeholder) {
    Ref args = fx::args_of(placeholder);
    return PyTuple_GET_SIZE(args.get()) > 1 ? Ref::steal(PyTuple_GetSlice(args.get(), 0, 1))
                                            : std::move(args);
  }

  void call(PartitionId p) {
    std::vector<PyObject*> inputs;
    for (NodeId id : context_.partition(p).inputs) {
      if (context_.is_module_attribute(id)) continue;
      FXPRESS_CHECK(values_[id.value()] != nullptr, "partition called before its input exists");
      inputs.push_back(values_[id.value()]);
    }
    Ref args = new_tuple(inputs);
    PyObject* name = context_.plan.submodule_names[p.value()].get();
    const fx::NewNode node = {Op::kCallModule, name, context_.names.candidate_for_target(name),
                              Py_None};
    PyObject* result =
        writer_.create(node, std::move(args), Ref::borrow(fx::no_kwargs), inputs, {});
    attributes_.emplace_back(name, submodules_[p.value()].get());
    unpack(result, context_.partition(p).outputs);
  }

  void unpack(PyObject* result, std::span<const NodeId> outputs) {
    if (outputs.size() == 1 && !context_.options.tuple_return) {
      values_[outputs[0].value()] = result;
      return;
    }
    for (size_t i = 0; i < outputs.size(); ++i) {
      values_[outputs[i].value()] = writer_.getitem(result, i, current_meta_.fresh());
    }
  }

  void write_output() {
    for (uint32_t i = 0; i < context_.graph().size(); ++i) {
      if (context_.graph().ops[i] != Op::kOutput) continue;
      fx::InputCursor inputs(context_.graph().inputs_of(NodeId(i)));
      for (NodeId id : context_.graph().inputs_of(NodeId(i))) import(id);
      PyObject* original = context_.node(NodeId(i));
      writer_.output(fx::returned_value(original).get(), [&](PyObject*) {
        PyObject* value = values_[inputs.next().value()];
        FXPRESS_CHECK(value != nullptr, "output of the graph was not computed");
        return value;
      });
      inputs.finish();
    }
  }

  Context& context_;
  std::span<const Ref> submodules_;  // modules, by partition
  fx::GraphWriter writer_;
  std::vector<PyObject*>& values_;   // by node of the original graph: its node in the base graph
  fx::ModuleAttributes attributes_;  // the attributes that the base graph uses
  bool placeholders_done_ = false;   // whether all placeholders are written
  CurrentMeta current_meta_;         // meta of the nodes that unpack partitions' outputs
};

void record_partition_names(PyObject* module, std::span<const Ref> submodule_names) {
  const Ref set = Ref::steal(PySet_New(nullptr));
  for (const Ref& name : submodule_names) check(PySet_Add(set.get(), name.get()));
  const Ref meta = get_attr(module, fx::names.meta);
  check(PyDict_SetItem(meta.get(), fx::names.partition_names, set.get()));
}

}  // namespace

WrittenSplit write_split(const SplitPlan& plan, const SplitOptions& options) {
  WrittenSplit split;
  fx::NameWriter name_writer(fx::NameWriter::Forbidden::kForNodes);
  Context context{plan, options, name_writer, split.stale};
  std::vector<PyObject*> written(plan.source.graph.size(), nullptr);
  std::vector<Ref> submodules;
  submodules.reserve(plan.order.size());
  for (uint32_t p = 0; p < plan.order.size(); ++p) {
    submodules.push_back(PartitionWriter(context, written, PartitionId(p)).run());
  }
  std::fill(written.begin(), written.end(), nullptr);
  split.result = BaseWriter(context, submodules, written).run();
  record_partition_names(split.result.get(), plan.submodule_names);
  return split;
}

}  // namespace fxpress::split
