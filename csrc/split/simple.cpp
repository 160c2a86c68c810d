#include <array>
#include <memory>
#include <span>
#include <utility>
#include <vector>

#include "fx/arguments.h"
#include "fx/graph_module.h"
#include "fx/reader.h"
#include "fx/symbols.h"
#include "fx/writer.h"
#include "py/calls.h"
#include "py/gc_pause.h"
#include "split/assign.h"
#include "split/plan/partition.h"
#include "split/split.h"

namespace fxpress::split {

using core::Op;

namespace {

Ref get_item(PyObject* container, PyObject* key) {
  return Ref::steal(PyObject_GetItem(container, key));
}

Ref new_default_dict() {
  return call(fx::symbols.defaultdict, reinterpret_cast<PyObject*>(&PyDict_Type));
}

std::vector<Ref> list_items(PyObject* iterable) {
  const Ref list = Ref::steal(PySequence_List(iterable));
  std::vector<Ref> result;
  for (PyObject* item : items_of(list.get())) result.push_back(Ref::borrow(item));
  return result;
}

using NamedNodes = std::vector<std::pair<Ref, Ref>>;

// Converts a mapping {name: node} to pairs. TypeError for keys or values of other types.
NamedNodes named_nodes(PyObject* mapping) {
  const Ref dict = Ref::steal(PyDict_New());
  check(PyDict_Update(dict.get(), mapping));
  NamedNodes result;
  for (const auto& [name, node] : DictRange(dict.get())) {
    if (!PyUnicode_Check(name) || !fx::is_node(node)) {
      raise(PyExc_TypeError,
            "expected inputs and outputs of a partition as {name: node}, found %R: %R", name, node);
    }
    result.emplace_back(Ref::borrow(name), Ref::borrow(node));
  }
  return result;
}

// The flat graph of a module, and the partition ids of its nodes.
class SimpleSplit {
 public:
  explicit SimpleSplit(PyObject* module)
      : graph_object_(get_attr(module, fx::names.graph)),
        source_(fx::read_graph(graph_object_.get(), fx::InputOrder::kArguments)),
        partition_(source_.graph.size()) {}

  const core::Graph& graph() const { return source_.graph; }
  const std::vector<Ref>& nodes() const { return source_.nodes.objects(); }
  PyObject* node(NodeId id) const { return source_.nodes[id.value()]; }
  PyObject* target(NodeId id) const { return source_.targets[source_.graph.targets[id.value()]]; }
  std::vector<PartitionId>& partition() { return partition_; }
  const std::vector<Ref>& ids() const { return ids_; }

  // Returns the partition of an id; a new id gets a new partition.
  PartitionId partition_of(PyObject* id) {
    const Ref next = Ref::steal(PyLong_FromSize_t(ids_.size()));
    PyObject* known = PyDict_SetDefault(index_.get(), id, next.get());
    check(known);
    const PartitionId partition(PyLong_AsSize_t(known));
    if (partition.value() == ids_.size()) ids_.push_back(Ref::borrow(id));
    return partition;
  }

  // Placeholders and the output are not in a partition, even if an earlier split marked them.
  bool is_assigned(NodeId id) const {
    const Op op = graph().ops[id.value()];
    return op != Op::kPlaceholder && op != Op::kOutput;
  }

  // Reads the marks that _detect_dependencies has set on the nodes.
  void read_marks() {
    for (uint32_t i = 0; i < graph().size(); ++i) {
      if (!is_assigned(NodeId(i))) continue;
      const Ref id = find_attr(node(NodeId(i)), fx::names.fx_partition);
      if (id) partition_[i] = partition_of(id.get());
    }
  }

  // The nodes of each partition, in graph order.
  std::vector<std::vector<NodeId>> members() const {
    std::vector<std::vector<NodeId>> result(ids_.size());
    for (uint32_t i = 0; i < graph().size(); ++i) {
      if (partition_[i].valid()) result[partition_[i].value()].emplace_back(i);
    }
    return result;
  }

  Ref type_expr(NodeId id) const { return fx::node_field(node(id), fx::symbols.node_type_expr); }
  Ref name(NodeId id) const { return fx::node_field(node(id), fx::symbols.node_name); }

 private:
  Ref graph_object_;                      // torch.fx.Graph
  fx::ReadGraph source_;                  // graph_object_, flat
  std::vector<PartitionId> partition_;    // by node; invalid for placeholders and the output
  Ref index_ = Ref::steal(PyDict_New());  // partition id (any object) -> position in ids_
  std::vector<Ref> ids_;                  // partition ids, by partition
};

void assign(SimpleSplit& split, PyObject* node_to_partition, PartitionMarks& marks) {
  marks.watch(split.nodes());
  for (uint32_t i = 0; i < split.graph().size(); ++i) {
    if (!split.is_assigned(NodeId(i))) continue;
    const Ref id = get_item(node_to_partition, split.node(NodeId(i)));
    split.partition()[i] = split.partition_of(id.get());
    marks.mark(i, id.get());
  }
}

// Returns {partition id: {name: node}} for `member`, the inputs or the outputs. Omits empty dicts.
Ref table_of(const SimpleSplit& split, const Partitioning& partitions,
             std::vector<NodeId> Partition::* member) {
  Ref table = new_default_dict();
  for (size_t p = 0; p < split.ids().size(); ++p) {
    const std::vector<NodeId>& nodes = partitions.partitions()[p].*member;
    if (nodes.empty()) continue;
    const Ref row = Ref::steal(PyDict_New());
    for (NodeId id : nodes) check(PyDict_SetItem(row.get(), split.name(id).get(), split.node(id)));
    check(PyDict_SetItem(table.get(), split.ids()[p].get(), row.get()));
  }
  return table;
}

std::unique_ptr<Partitioning> find_dependencies(SimpleSplit& split) {
  auto partitions =
      std::make_unique<Partitioning>(split.graph(), split.partition(), split.ids().size());
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
        continue;
      }
      if (!used_by.valid()) continue;
      const uint32_t use = split.graph().input_begin[i] + static_cast<uint32_t>(k);
      partitions->record_use(use, inputs[k], user);
      if (partitions->input_slots()[use] == Partitioning::kLocal) continue;
      // Runs at every use of the input, because visit() may find a binder between two uses.
      for (NodeId binder : binders.needed_by(inputs[k], split.node(inputs[k]))) {
        partitions->record_symbol(binder, used_by);
      }
    }
  }
  return partitions;
}

// A partition, as described by its entries in the dicts that detect_dependencies() returns.
struct Described {
  Ref id;              // any object
  Ref graph;           // torch.fx.Graph
  NamedNodes inputs;   // values of other partitions and placeholders
  NamedNodes outputs;  // values that other partitions need
};

// Reads and checks the dicts that detect_dependencies() returned, before anything is written.
std::vector<Described> describe(std::span<const Ref> partitions, PyObject* graphs, PyObject* inputs,
                                PyObject* outputs) {
  std::vector<Described> result;
  for (const Ref& id : partitions) {
    result.push_back({Ref::borrow(id.get()), get_item(graphs, id.get()),
                      named_nodes(get_item(inputs, id.get()).get()),
                      named_nodes(get_item(outputs, id.get()).get())});
  }
  return result;
}

// Clones the nodes of a partition into the graph that detect_dependencies() created for it.
void clone_partition(const SimpleSplit& split, fx::NameWriter& name_writer,
                     const Described& partition, std::span<const NodeId> members,
                     PyObject* environment) {
  fx::GraphWriter writer(name_writer, Ref::borrow(partition.graph.get()));
  for (const auto& [name, original] : partition.inputs) {
    PyObject* clone = writer.placeholder_like(original.get(), name.get(), Ref::borrow(fx::no_args));
    check(PyDict_SetItem(environment, original.get(), clone));
  }
  const auto in_partition = [&](PyObject* def) {
    PyObject* clone = dict_get(environment, def);
    if (clone == nullptr) {
      raise(PyExc_KeyError,
            "node %R is neither in the partition that uses it nor an input of the partition", def);
    }
    return clone;
  };
  for (NodeId id : members) {
    poll_signals(id.value());
    PyObject* target = split.target(id);
    const Ref type_expr = split.type_expr(id);
    const fx::NewNode node = {split.graph().ops[id.value()], target,
                              name_writer.candidate_for_target(target), type_expr.get()};
    PyObject* clone = writer.copy(node, split.node(id), in_partition);
    check(PyDict_SetItem(environment, split.node(id), clone));
  }
  std::vector<PyObject*> values;
  for (const auto& [name, original] : partition.outputs) {
    values.push_back(in_partition(original.get()));
  }
  writer.output_of(values, values.size() != 1);
  writer.finish();
}

// Writes the graph that calls the partitions. Finds values by the names of the original nodes.
class Stitcher {
 public:
  Stitcher(const SimpleSplit& split, PyObject* affix) : split_(split), affix_(affix) {}

  Ref run(std::span<const Described> partitions) {
    import_placeholders();
    for (const Described& partition : partitions) {
      const Ref submodule = fx::make_lite_graph_module(partition.graph.get(), Py_None);
      const Ref name = submodule_name(partition_name(partition.id.get(), affix_).get());
      check(PyDict_SetItem(modules_.get(), name.get(), submodule.get()));
      call(name.get(), partition);
    }
    write_output();
    writer_.finish();
    return fx::make_lite_graph_module(writer_.graph(), modules_.get());
  }

 private:
  PyObject* value(PyObject* name) const {
    PyObject* node = dict_get(values_.get(), name);
    if (node == nullptr) {
      raise(PyExc_KeyError,
            "a partition needs %R before the partition that computes it has run: "
            "split_module_simple calls partitions in order of first appearance; use split_module",
            name);
    }
    return node;
  }

  void import_placeholders() {
    for (uint32_t i = 0; i < split_.graph().size(); ++i) {
      const NodeId id(i);
      if (split_.graph().ops[i] != Op::kPlaceholder) continue;
      PyObject* created =
          writer_.placeholder_like(split_.node(id), split_.target(id), Ref::borrow(fx::no_args));
      check(PyDict_SetItem(values_.get(), split_.name(id).get(), created));
    }
  }

  void call(PyObject* submodule, const Described& partition) {
    std::vector<PyObject*> values;
    for (const auto& [name, original] : partition.inputs) values.push_back(value(name.get()));
    Ref args = new_tuple(values);
    const fx::NewNode node = {Op::kCallModule, submodule,
                              name_writer_.candidate_for_target(submodule), Py_None};
    PyObject* result =
        writer_.create(node, std::move(args), Ref::borrow(fx::no_kwargs), values, {});
    const NamedNodes& outputs = partition.outputs;
    for (size_t i = 0; i < outputs.size(); ++i) {
      PyObject* output =
          outputs.size() > 1 ? writer_.getitem(result, i, current_meta_.fresh()) : result;
      check(PyDict_SetItem(values_.get(), outputs[i].first.get(), output));
    }
  }

  void write_output() {
    for (uint32_t i = 0; i < split_.graph().size(); ++i) {
      if (split_.graph().ops[i] != Op::kOutput) continue;
      PyObject* original = split_.node(NodeId(i));
      writer_.output(fx::returned_value(original).get(), [&](PyObject* def) {
        return value(fx::node_field(def, fx::symbols.node_name).get());
      });
    }
  }

  const SimpleSplit& split_;
  PyObject* affix_;  // str or None; borrowed
  fx::NameWriter name_writer_{fx::NameWriter::Forbidden::kForNodes};
  fx::GraphWriter writer_{name_writer_};
  Ref values_ = Ref::steal(PyDict_New());   // name in the original graph -> node of the base graph
  Ref modules_ = Ref::steal(PyDict_New());  // name -> partition's module
  CurrentMeta current_meta_;                // meta of the nodes that unpack partitions' outputs
};

// Returns the results of torch's _detect_dependencies: graphs (empty), inputs, outputs, ids.
std::array<Ref, 4> detect(SimpleSplit& split, PyObject* node_to_partition, PartitionMarks& marks) {
  assign(split, node_to_partition, marks);
  const auto partitions = find_dependencies(split);
  Ref ids =
      make_list(split.ids().size(), [&](size_t i) { return Ref::borrow(split.ids()[i].get()); });
  Ref graphs = Ref::steal(PyDict_New());
  for (const Ref& id : split.ids()) {
    const Ref graph = call(fx::symbols.graph_type);
    check(PyDict_SetItem(graphs.get(), id.get(), graph.get()));
  }
  return {std::move(graphs), table_of(split, *partitions, &Partition::inputs),
          table_of(split, *partitions, &Partition::outputs), std::move(ids)};
}

Ref clone(SimpleSplit& split, std::span<const Described> partitions) {
  const auto members = split.members();
  const GcPause pause;
  fx::NameWriter name_writer(fx::NameWriter::Forbidden::kForNodes);
  Ref result = new_default_dict();
  for (const Described& partition : partitions) {
    const PartitionId p = split.partition_of(partition.id.get());
    clone_partition(split, name_writer, partition,
                    p.value() < members.size() ? std::span<const NodeId>(members[p.value()])
                                               : std::span<const NodeId>(),
                    get_item(result.get(), partition.id.get()).get());
  }
  return result;
}

Ref stitch(const SimpleSplit& split, PyObject* affix, std::span<const Described> partitions) {
  const GcPause pause;
  return Stitcher(split, affix).run(partitions);
}

// Returns work(split, marks). The marks on nodes are kept only if work() does not fail.
template <class Work>
Ref with_split(PyObject* module, Work work) {
  std::optional<SimpleSplit> split;
  PartitionMarks marks;
  Ref result;
  fx::on_unchanged(get_attr(module, fx::names.graph).get(), [&] {
    split.emplace(module);
    result = work(*split, marks);
  });
  marks.keep();
  return result;
}

}  // namespace

Ref split_module_simple(PyObject* module, PyObject* node_to_partition, PyObject* affix) {
  return with_split(module, [&](SimpleSplit& split, PartitionMarks& marks) {
    const auto [graphs, inputs, outputs, ids] = detect(split, node_to_partition, marks);
    const auto partitions = describe(split.ids(), graphs.get(), inputs.get(), outputs.get());
    clone(split, partitions);
    return stitch(split, affix, partitions);
  });
}

Ref detect_dependencies(PyObject* module, PyObject* node_to_partition) {
  return with_split(module, [&](SimpleSplit& split, PartitionMarks& marks) {
    const auto [graphs, inputs, outputs, ids] = detect(split, node_to_partition, marks);
    return Ref::steal(PyTuple_Pack(4, graphs.get(), inputs.get(), outputs.get(), ids.get()));
  });
}

Ref clone_nodes_into_partitions(PyObject* module, PyObject* graphs, PyObject* inputs,
                                PyObject* outputs, PyObject* partitions) {
  return with_split(module, [&](SimpleSplit& split, PartitionMarks&) {
    split.read_marks();
    return clone(split, describe(list_items(partitions), graphs, inputs, outputs));
  });
}

Ref build_stitching_graph(PyObject* module, PyObject* graphs, PyObject* inputs, PyObject* outputs,
                          PyObject* partitions, PyObject* affix) {
  return with_split(module, [&](SimpleSplit& split, PartitionMarks&) {
    return stitch(split, affix, describe(list_items(partitions), graphs, inputs, outputs));
  });
}

}  // namespace fxpress::split
