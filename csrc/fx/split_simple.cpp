#include "fx/split_simple.h"

#include <memory>
#include <unordered_map>

#include "core/partition.h"
#include "fx/gc_pause.h"
#include "fx/graph_module.h"
#include "fx/reader.h"
#include "fx/split_assign.h"
#include "fx/split_symbols.h"
#include "fx/symbols.h"
#include "fx/writer.h"

namespace fxpress::fx {

using core::NodeId;
using core::Op;
using core::PartitionId;

namespace {

Ref get_item(PyObject* container, PyObject* key) {
  return Ref::steal(PyObject_GetItem(container, key));
}

// The graph of a module, flat, and the partition ids that its nodes were mapped to.
class SimpleSplit {
 public:
  explicit SimpleSplit(PyObject* module)
      : graph_object_(get_attr(module, names.graph)),
        source_(read_graph(graph_object_.get(), InputOrder::kArguments)),
        partition_(source_.graph.size()) {}

  const core::Graph& graph() const { return source_.graph; }
  const std::vector<Ref>& nodes() const { return source_.nodes.objects(); }
  PyObject* node(NodeId id) const { return source_.nodes[id.value()]; }
  PyObject* target(NodeId id) const { return source_.targets[source_.graph.targets[id.value()]]; }
  PyObject* graph_object() const { return graph_object_.get(); }
  std::vector<PartitionId>& partition() { return partition_; }
  const std::vector<Ref>& ids() const { return ids_; }

  // The partition of an id, new when it is seen for the first time.
  PartitionId partition_of(PyObject* id) {
    const Ref next = Ref::steal(PyLong_FromSize_t(ids_.size()));
    PyObject* known = PyDict_SetDefault(index_.get(), id, next.get());
    check(known);
    const PartitionId partition(PyLong_AsSize_t(known));
    if (partition.value() == ids_.size()) ids_.push_back(Ref::borrow(id));
    return partition;
  }

  // Reads the marks that _detect_dependencies left on the nodes.
  void read_marks() {
    for (uint32_t i = 0; i < graph().size(); ++i) {
      const Ref id = find_attr(node(NodeId(i)), names.fx_partition);
      if (id) partition_[i] = partition_of(id.get());
    }
  }

  Ref type_expr(NodeId id) const { return node_field(node(id), symbols.node_type_expr); }
  Ref name(NodeId id) const { return node_field(node(id), symbols.node_name); }

 private:
  Ref graph_object_;                      // torch.fx.Graph
  ReadGraph source_;                      // the same, flat
  std::vector<PartitionId> partition_;    // by node; invalid for placeholders and the output
  Ref index_ = Ref::steal(PyDict_New());  // partition id (any object) -> position in ids_
  std::vector<Ref> ids_;                  // by partition
};

void assign(SimpleSplit& split, PyObject* node_to_partition, PartitionMarks& marks) {
  marks.watch(split.nodes());
  for (uint32_t i = 0; i < split.graph().size(); ++i) {
    const Op op = split.graph().ops[i];
    if (op == Op::kPlaceholder || op == Op::kOutput) continue;
    const Ref id = get_item(node_to_partition, split.node(NodeId(i)));
    split.partition()[i] = split.partition_of(id.get());
    marks.mark(i, id.get());
  }
}

// {partition id: {name: node}} for the inputs or the outputs of every partition that has any.
Ref table_of(const SimpleSplit& split, const core::Partitioning& partitions,
             std::vector<NodeId> core::Partition::* member) {
  const Ref dict_type = Ref::borrow(reinterpret_cast<PyObject*>(&PyDict_Type));
  Ref table = Ref::steal(PyObject_CallOneArg(symbols.defaultdict, dict_type.get()));
  for (size_t p = 0; p < split.ids().size(); ++p) {
    const std::vector<NodeId>& nodes = partitions.partitions()[p].*member;
    if (nodes.empty()) continue;
    const Ref row = Ref::steal(PyDict_New());
    for (NodeId id : nodes) check(PyDict_SetItem(row.get(), split.name(id).get(), split.node(id)));
    check(PyDict_SetItem(table.get(), split.ids()[p].get(), row.get()));
  }
  return table;
}

std::unique_ptr<core::Partitioning> find_dependencies(SimpleSplit& split) {
  auto partitions =
      std::make_unique<core::Partitioning>(split.graph(), split.partition(), split.ids().size());
  SymbolBinders binders(BinderRule::kAnySymbolic);
  for (uint32_t i = 0; i < split.graph().size(); ++i) {
    poll_signals(i);
    const NodeId user(i);
    binders.visit(user, split.node(user));
    const auto inputs = split.graph().inputs_of(user);
    const PartitionId used_by = split.partition()[i];
    for (size_t k = 0; k < inputs.size(); ++k) {
      if (split.graph().ops[i] == Op::kOutput) {
        partitions->record_output(inputs[k]);
      } else if (used_by.valid() &&
                 partitions->record_use(split.graph().input_begin[i] + static_cast<uint32_t>(k),
                                        inputs[k], user)) {
        for (NodeId binder : binders.needed_by(inputs[k], split.node(inputs[k]))) {
          partitions->record_symbol(binder, used_by);
        }
      }
    }
  }
  return partitions;
}

Ref list_of(const std::vector<Ref>& items) {
  Ref list = Ref::steal(PyList_New(0));
  for (const Ref& item : items) check(PyList_Append(list.get(), item.get()));
  return list;
}

// One partition's clones, in the graph that detect_dependencies made for it.
void clone_partition(const SimpleSplit& split, NameWriter& name_writer, PyObject* graph,
                     PyObject* inputs, PyObject* outputs, std::span<const NodeId> members,
                     PyObject* environment) {
  GraphWriter writer(name_writer, Ref::borrow(graph));
  PyObject* name = nullptr;
  PyObject* original = nullptr;
  for (Py_ssize_t position = 0; PyDict_Next(inputs, &position, &name, &original) != 0;) {
    const Ref type_expr = node_field(original, symbols.node_type_expr);
    const NewNode node = {Op::kPlaceholder, name, name_writer.candidate_for_target(name),
                          type_expr.get()};
    PyObject* clone = writer.leaf(node, Ref::borrow(no_args), GraphWriter::copy_meta(original));
    check(PyDict_SetItem(environment, original, clone));
  }
  const auto in_partition = [&](PyObject* def) {
    PyObject* clone = dict_get(environment, def);
    if (clone == nullptr) {
      raise(PyExc_KeyError, "node %R is neither in the partition that uses it nor an input of it",
            def);
    }
    return clone;
  };
  for (NodeId id : members) {
    poll_signals(id.value());
    PyObject* target = split.target(id);
    const Ref type_expr = split.type_expr(id);
    const NewNode node = {split.graph().ops[id.value()], target,
                          name_writer.candidate_for_target(target), type_expr.get()};
    PyObject* clone = writer.copy(node, split.node(id), in_partition);
    check(PyDict_SetItem(environment, split.node(id), clone));
  }
  std::vector<PyObject*> values;
  for (Py_ssize_t position = 0; PyDict_Next(outputs, &position, &name, &original) != 0;) {
    values.push_back(in_partition(original));
  }
  writer.output_of(values, values.size() != 1);
  writer.finish();
}

// The values of the base graph by the names of the nodes they stand for.
class Stitcher {
 public:
  Stitcher(const SimpleSplit& split, PyObject* affix) : split_(split), affix_(affix) {}

  Ref run(PyObject* graphs, PyObject* inputs, PyObject* outputs, PyObject* partitions) {
    import_placeholders();
    for (Py_ssize_t i = 0; i < PySequence_Size(partitions); ++i) {
      const Ref id = Ref::steal(PySequence_GetItem(partitions, i));
      const Ref submodule = make_lite_graph_module(get_item(graphs, id.get()).get(), Py_None);
      const Ref name = affix_ == Py_None
                           ? Ref::steal(PyUnicode_FromFormat("submod_%S", id.get()))
                           : Ref::steal(PyUnicode_FromFormat("submod_%S_%S", affix_, id.get()));
      check(PyDict_SetItem(modules_.get(), name.get(), submodule.get()));
      call(name.get(), get_item(inputs, id.get()).get(), get_item(outputs, id.get()).get());
    }
    write_output();
    writer_.finish();
    return make_lite_graph_module(writer_.graph(), modules_.get());
  }

 private:
  PyObject* value(PyObject* name) const {
    PyObject* node = dict_get(values_.get(), name);
    if (node == nullptr) {
      raise(PyExc_KeyError,
            "%R is needed before the partition that computes it has run: "
            "split_module_simple calls partitions in order of first appearance; use split_module",
            name);
    }
    return node;
  }

  void import_placeholders() {
    for (uint32_t i = 0; i < split_.graph().size(); ++i) {
      const NodeId id(i);
      if (split_.graph().ops[i] != Op::kPlaceholder) continue;
      const Ref type_expr = split_.type_expr(id);
      const NewNode node = {Op::kPlaceholder, split_.target(id),
                            name_writer_.candidate_for_target(split_.target(id)), type_expr.get()};
      PyObject* created =
          writer_.leaf(node, Ref::borrow(no_args), GraphWriter::copy_meta(split_.node(id)));
      check(PyDict_SetItem(values_.get(), split_.name(id).get(), created));
    }
  }

  void call(PyObject* submodule, PyObject* inputs, PyObject* outputs) {
    PyObject* name = nullptr;
    PyObject* ignored = nullptr;
    std::vector<PyObject*> values;
    for (Py_ssize_t position = 0; PyDict_Next(inputs, &position, &name, &ignored) != 0;) {
      values.push_back(value(name));
    }
    Ref args = new_tuple(values);
    const NewNode node = {Op::kCallModule, submodule, name_writer_.candidate_for_target(submodule),
                          Py_None};
    PyObject* result = writer_.create(node, std::move(args), Ref::borrow(no_kwargs), values, {});
    const bool many = PyDict_GET_SIZE(outputs) > 1;
    size_t index = 0;
    for (Py_ssize_t position = 0; PyDict_Next(outputs, &position, &name, &ignored) != 0;) {
      PyObject* output = many ? writer_.getitem(result, index++, {}) : result;
      check(PyDict_SetItem(values_.get(), name, output));
    }
  }

  void write_output() {
    for (uint32_t i = 0; i < split_.graph().size(); ++i) {
      if (split_.graph().ops[i] != Op::kOutput) continue;
      const Ref args = node_field(split_.node(NodeId(i)), symbols.node_args);
      writer_.output(PyTuple_GET_ITEM(args.get(), 0), [&](PyObject* def) {
        return value(node_field(def, symbols.node_name).get());
      });
    }
  }

  const SimpleSplit& split_;
  PyObject* affix_;  // str or None; borrowed
  NameWriter name_writer_{NameWriter::Forbidden::kForNodes};
  GraphWriter writer_{name_writer_};
  Ref values_ = Ref::steal(PyDict_New());   // name in the source -> node of the base graph
  Ref modules_ = Ref::steal(PyDict_New());  // name -> partition's module
};

}  // namespace

Ref detect_dependencies(PyObject* module, PyObject* node_to_partition) {
  SimpleSplit split(module);
  PartitionMarks marks;
  assign(split, node_to_partition, marks);
  const auto partitions = find_dependencies(split);
  const Ref graphs = Ref::steal(PyDict_New());
  for (const Ref& id : split.ids()) {
    const Ref graph = Ref::steal(PyObject_CallNoArgs(symbols.graph_type));
    check(PyDict_SetItem(graphs.get(), id.get(), graph.get()));
  }
  Ref result = Ref::steal(PyTuple_Pack(
      4, graphs.get(), table_of(split, *partitions, &core::Partition::inputs).get(),
      table_of(split, *partitions, &core::Partition::outputs).get(), list_of(split.ids()).get()));
  marks.keep();
  return result;
}

Ref clone_nodes_into_partitions(PyObject* module, PyObject* graphs, PyObject* inputs,
                                PyObject* outputs, PyObject* partitions) {
  SimpleSplit split(module);
  split.read_marks();
  std::vector<std::vector<NodeId>> members(split.ids().size());
  for (uint32_t i = 0; i < split.graph().size(); ++i) {
    if (split.partition()[i].valid()) members[split.partition()[i].value()].emplace_back(i);
  }
  const GcPause pause;
  NameWriter name_writer(NameWriter::Forbidden::kForNodes);
  const Ref dict_type = Ref::borrow(reinterpret_cast<PyObject*>(&PyDict_Type));
  Ref result = Ref::steal(PyObject_CallOneArg(symbols.defaultdict, dict_type.get()));
  for (Py_ssize_t i = 0; i < PySequence_Size(partitions); ++i) {
    const Ref id = Ref::steal(PySequence_GetItem(partitions, i));
    const PartitionId p = split.partition_of(id.get());
    const Ref environment = get_item(result.get(), id.get());
    clone_partition(split, name_writer, get_item(graphs, id.get()).get(),
                    get_item(inputs, id.get()).get(), get_item(outputs, id.get()).get(),
                    p.value() < members.size() ? std::span<const NodeId>(members[p.value()])
                                               : std::span<const NodeId>(),
                    environment.get());
  }
  return result;
}

Ref build_stitching_graph(PyObject* module, PyObject* graphs, PyObject* inputs, PyObject* outputs,
                          PyObject* partitions, PyObject* affix) {
  const SimpleSplit split(module);
  const GcPause pause;
  return Stitcher(split, affix).run(graphs, inputs, outputs, partitions);
}

}  // namespace fxpress::fx
