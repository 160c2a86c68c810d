#include "split/split.h"

#include <memory>
#include <string>

#include "core/text_hash.h"
#include "fx/attributes.h"
#include "fx/reader.h"
#include "fx/symbols.h"
#include "py/gc_pause.h"
#include "split/plan/toposort.h"

namespace fxpress::split {

using core::Op;

namespace {

// Makes all decisions and raises all errors that depend on the input; changes only the plan.
class Planner {
 public:
  // `plan` already has the assignment and the source.
  Planner(PyObject* module, const SplitOptions& options, SplitPlan& plan)
      : module_(module), options_(options), plan_(plan) {}

  void run() {
    record_uses();
    plan_.partitions->finish();
    order_partitions();
    resolve_attributes();
    for (const Ref& name : plan_.assignment.partition_names) {
      plan_.submodule_names.push_back(submodule_name(name.get()));
    }
  }

 private:
  const core::Graph& graph() const { return plan_.source.graph; }
  PyObject* node(NodeId id) const { return plan_.source.nodes[id.value()]; }
  PyObject* target(NodeId id) const { return plan_.source.targets[graph().targets[id.value()]]; }
  PyObject* partition_name(PartitionId p) const {
    return plan_.assignment.partition_names[p.value()].get();
  }

  void record_uses() {
    const auto& partition = plan_.assignment.partition;
    plan_.partitions =
        std::make_unique<Partitioning>(graph(), partition, plan_.assignment.partition_names.size());
    for (uint32_t i = 0; i < graph().size(); ++i) {
      poll_signals(i);
      const NodeId user(i);
      const auto inputs = graph().inputs_of(user);
      if (graph().ops[i] == Op::kOutput) {
        for (NodeId def : inputs) {
          plan_.partitions->record_output(def);
          log_use(def, NodeId());
        }
        continue;
      }
      // Each partition repeats the switches of global state, so their arguments are not inputs.
      if (!partition[i].valid() || is_global_state_target(target(user))) continue;
      for (size_t k = 0; k < inputs.size(); ++k) {
        const NodeId def = inputs[k];
        log_use(def, user);
        const uint32_t use = graph().input_begin[i] + static_cast<uint32_t>(k);
        if (plan_.partitions->record_use(use, def, user)) {
          for (NodeId binder : plan_.assignment.binders.needed_by(def, node(def))) {
            if (!is_called_after(partition[binder.value()], partition[i])) {
              plan_.partitions->record_symbol(binder, partition[i]);
            }
          }
        } else if (partition[i] == partition[def.value()] && def.value() >= i) {
          raise(PyExc_KeyError,
                "node %R uses %R before it is defined: the graph is not in topological order",
                node(user), node(def));
        }
      }
    }
  }

  // Whether partition `owner` is certainly called after `user`, which then cannot use its symbols.
  // This is certain only if the graph switches grad mode: calls are then in graph order.
  bool is_called_after(PartitionId owner, PartitionId user) const {
    return !plan_.assignment.grad.empty() && owner.valid() && owner > user;
  }

  void log_use(NodeId def, NodeId user) const {
    if (options_.debug == Py_None) return;
    const Ref dash = Ref::steal(PyUnicode_FromString("-"));
    const auto name = [&](NodeId id) {
      return id.valid() ? fx::node_field(node(id), fx::symbols.node_name) : Ref::borrow(dash.get());
    };
    const auto partition = [&](NodeId id) {
      const PartitionId p = id.valid() ? plan_.assignment.partition[id.value()] : PartitionId();
      return p.valid() ? partition_name(p) : Py_None;
    };
    Ref::steal(PyObject_CallFunction(options_.debug, "sOOOO",
                                     "record_cross_partition_use %s (%s) %s (%s)", name(def).get(),
                                     partition(def), name(user).get(), partition(user)));
  }

  void order_partitions() {
    const auto dependents = plan_.partitions->dependents();
    plan_.order = partition_order(dependents);
    if (plan_.order.size() != dependents.size()) raise_cycle(dependents);
    // A switch of grad mode affects all later calls, so the partitions must be called in graph
    // order. check_monotonic() ensures that partition ids do not decrease along the graph, so this
    // order fails only if a node uses a later node.
    if (!options_.keep_original_order && plan_.assignment.grad.empty()) return;
    for (uint32_t p = 0; p < dependents.size(); ++p) {
      plan_.order[p] = PartitionId(p);
      for (PartitionId user : dependents[p]) {
        if (user.value() > p) continue;
        raise(PyExc_KeyError,
              "partition %R appears before %R but uses a value of it: with %s, a partition can use "
              "only values of partitions that appear before it",
              partition_name(user), partition_name(PartitionId(p)),
              options_.keep_original_order ? "keep_original_order=True"
                                           : "a graph with switches of grad mode");
      }
    }
  }

  [[noreturn]] void raise_cycle(const std::vector<std::vector<PartitionId>>& dependents) const {
    std::string path;
    const auto cycle = find_cycle(dependents, plan_.order);
    for (PartitionId p : cycle) {
      path += utf8(partition_name(p));
      path += " -> ";
    }
    path += utf8(partition_name(cycle.front()));
    raise(PyExc_RuntimeError,
          "cycle exists between partitions! (%s, where each partition needs a value of the one "
          "before): the callback must assign the nodes without a cycle",
          path.c_str());
  }

  // Finds the objects that nodes refer to. Nothing has been created yet, so errors change nothing.
  void resolve_attributes() {
    const std::vector<bool> needed = needed_get_attrs();
    fx::AttributePaths paths(module_);
    // By partition: flat name -> module. Flattening may map two paths to one name.
    std::vector<core::TextMap<PyObject*>> taken(plan_.partitions->partitions().size());
    for (uint32_t i = 0; i < graph().size(); ++i) {
      const NodeId id(i);
      if (graph().ops[i] == Op::kGetAttr && needed[i]) {
        PyObject* value = (plan_.attribute(id).value = paths.resolve(target(id))).get();
        if (!fx::is_module(value)) continue;
        // A body of a higher-order operator keeps its path in each partition that uses it.
        if (graph().user_begin.empty()) plan_.source.graph.link_users();
        for (NodeId user : graph().users_of(id)) {
          const PartitionId p = plan_.assignment.partition[user.value()];
          if (p.valid()) taken[p.value()].emplace(utf8(target(id)), value);
        }
      }
    }
    for (uint32_t i = 0; i < graph().size(); ++i) {
      if (graph().ops[i] != Op::kCallModule) continue;
      const PartitionId p = plan_.assignment.partition[i];
      SplitPlan::Attribute& attribute = plan_.attribute(NodeId(i));
      attribute.value = paths.resolve(target(NodeId(i)));
      attribute.target =
          new_string(flat_name(target(NodeId(i)), attribute.value.get(), taken[p.value()]));
    }
  }

  // Converts "a.b" to "a_b". Adds a number if another module of the partition has the name "a_b".
  // In this case, torch calls the wrong module.
  static std::string flat_name(PyObject* target, PyObject* value, core::TextMap<PyObject*>& taken) {
    std::string flat(utf8(target));
    for (char& c : flat) {
      if (c == '.') c = '_';
    }
    std::string name = flat;
    for (size_t number = 1;; ++number) {
      const auto [it, added] = taken.emplace(name, value);
      if (added || it->second == value) return name;
      name = flat + '_' + std::to_string(number);
    }
  }

  // Returns which get_attr nodes are written: all or, with keep_original_order, the used ones.
  std::vector<bool> needed_get_attrs() const {
    const bool all = !options_.keep_original_order || plan_.order.empty();
    std::vector<bool> needed(graph().size(), all);
    if (all) return needed;
    for (const Partition& partition : plan_.partitions->partitions()) {
      for (NodeId input : partition.inputs) needed[input.value()] = true;
    }
    for (uint32_t i = 0; i < graph().size(); ++i) {
      if (graph().ops[i] != Op::kOutput) continue;
      for (NodeId input : graph().inputs_of(NodeId(i))) needed[input.value()] = true;
    }
    return needed;
  }

  PyObject* module_;  // the module with the attributes
  const SplitOptions& options_;
  SplitPlan& plan_;  // the plan that run() completes
};

// Whether `read` still has the nodes `assigned`, and exactly its calls are in partitions.
bool fits(const std::vector<Ref>& assigned, const Assignment& assignment,
          const fx::ReadGraph& read) {
  bool same = assigned.size() == read.nodes.size();
  for (size_t i = 0; same && i < assigned.size(); ++i) {
    same = assigned[i].get() == read.nodes[i] &&
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
  SplitPlan plan;
  plan.assignment = assign_partitions({callback, options.affix, options.debug}, nodes, marks);
  WrittenSplit written;
  fx::on_unchanged(graph.get(), [&] {
    plan.source = fx::read_graph(graph.get(), fx::InputOrder::kArguments);
    if (!fits(nodes, plan.assignment, plan.source)) fx::raise_edited();
    plan.source.nodes.drop_index();
    Planner(module, options, plan).run();
    const GcPause pause;
    written = write_split(plan, options);
  });
  // Recompile after the pause of the garbage collector, because recompile() runs users' code.
  for (const Ref& child : written.stale) {
    // torch's code generator loops forever on a broken list of nodes, so walk_nodes() checks it.
    const Ref graph = get_attr(child.get(), fx::names.graph);
    fx::walk_nodes(get_attr(graph.get(), fx::names.root).get(), [](PyObject*) {});
    call_method(child.get(), fx::names.recompile);
  }
  if (options.qualname_map != Py_None) fill_qualname_map(plan, options.qualname_map);
  marks.keep();
  return std::move(written.result);
}

}  // namespace fxpress::split
