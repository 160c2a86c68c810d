#include "split/assign.h"

#include <algorithm>

#include "core/flat_map.h"
#include "core/graph.h"
#include "core/string_pool.h"
#include "fx/arguments.h"
#include "fx/symbols.h"
#include "py/calls.h"

namespace fxpress::split {

using core::NodeId;
using core::Op;
using core::PartitionId;

Ref partition_name(PyObject* id, PyObject* affix) {
  Ref text = Ref::steal(PyObject_Str(id));
  if (affix == Py_None) return text;
  return Ref::steal(PyUnicode_FromFormat("%S_%U", affix, text.get()));
}

Ref submodule_name(PyObject* partition) {
  return Ref::steal(PyUnicode_FromFormat("submod_%S", partition));
}

namespace {

// Returns node.meta.get("example_value"); empty for None.
Ref example_value(PyObject* node) {
  Ref value = fx::find_meta(node, fx::names.example_value);
  return value.get() == Py_None ? Ref() : std::move(value);
}

// Whether the value has static sizes, and its class is exactly Tensor, Parameter or FakeTensor.
bool has_static_shape(PyObject* value) {
  auto* type = reinterpret_cast<PyObject*>(Py_TYPE(value));
  if (type != fx::symbols.fake_tensor_type && type != fx::symbols.tensor_type &&
      type != fx::symbols.parameter_type) {
    return false;
  }
  return get_attr(value, fx::names.has_symbolic_sizes_strides).get() == Py_False;
}

}  // namespace

SymbolBinders::SymbolBinders(BinderRule rule) : rule_(rule), binders_(Ref::steal(PyDict_New())) {}

bool SymbolBinders::is_candidate(PyObject* value) const {
  if (is_a(value, fx::symbols.tensor_type)) return false;
  if (rule_ == BinderRule::kAnySymbolic) return true;
  return is_instance(value, fx::symbols.sym_int_float_types);
}

void SymbolBinders::visit(NodeId id, PyObject* node) {
  const Ref value = example_value(node);
  if (!value || !is_candidate(value.get())) return;
  const Ref sym_node = find_attr(value.get(), fx::names.node);
  if (!sym_node) return;
  const Ref expr = find_attr(sym_node.get(), fx::names.expr);
  if (!expr) return;
  if (!is_instance(expr.get(), fx::symbols.sympy_symbol_type)) return;
  const Ref index = Ref::steal(PyLong_FromUnsignedLong(id.value()));
  check(PyDict_SetDefault(binders_.get(), expr.get(), index.get()));
}

Ref SymbolBinders::free_symbols(PyObject* node) const {
  const Ref value = example_value(node);
  if (!value || has_static_shape(value.get())) return {};
  const Ref free = call(fx::symbols.free_symbols, value);
  Ref sorted = Ref::steal(PySequence_List(free.get()));
  const Ref sort = Ref::steal(PyObject_GetAttrString(sorted.get(), "sort"));
  const Ref key =
      Ref::steal(Py_BuildValue("{s:O}", "key", reinterpret_cast<PyObject*>(&PyUnicode_Type)));
  Ref::steal(PyObject_Call(sort.get(), fx::no_args, key.get()));
  return sorted;
}

std::vector<NodeId> SymbolBinders::needed_by(NodeId def, PyObject* node) {
  std::vector<NodeId> result;
  if (rule_ == BinderRule::kAnySymbolic && PyDict_GET_SIZE(binders_.get()) == 0) return result;
  const auto [it, added] = symbols_.try_emplace(def.value());
  if (added) it->second = free_symbols(node);
  if (!it->second) return result;
  for (PyObject* symbol : items_of(it->second.get())) {
    PyObject* binder = dict_get(binders_.get(), symbol);
    if (binder != nullptr) result.emplace_back(PyLong_AsSize_t(binder));
  }
  return result;
}

PartitionMarks::~PartitionMarks() {
  if (nodes_.empty()) return;
  const pybind11::error_scope kept;  // saves the current exception
  const auto restore = [&](size_t node, PyObject* mark) {
    if (PyObject_GenericSetAttr(nodes_[node].get(), fx::names.fx_partition, mark) < 0)
      PyErr_Clear();
  };
  for (size_t i = 0; i < nodes_.size(); ++i) {
    if (marked_[i]) restore(i, nullptr);
  }
  for (const auto& [node, mark] : previous_) restore(node, mark.get());
}

void PartitionMarks::watch(const std::vector<Ref>& nodes) {
  nodes_ = nodes;
  marked_.assign(nodes.size(), false);
}

void PartitionMarks::mark(size_t node, PyObject* value) {
  PyObject* object = nodes_[node].get();
  Ref previous = find_attr(object, fx::names.fx_partition);
  if (previous) previous_.emplace_back(node, std::move(previous));
  check(PyObject_GenericSetAttr(object, fx::names.fx_partition, value));
  marked_[node] = true;
}

bool is_call(Op op) {
  return op != Op::kPlaceholder && op != Op::kGetAttr && op != Op::kOutput;
}

bool is_global_state_target(PyObject* target) {
  return target == fx::symbols.enter_autocast || target == fx::symbols.exit_autocast ||
         target == fx::symbols.set_grad_enabled;
}

namespace {

class Assigner {
 public:
  Assigner(const AssignRequest& request, const std::vector<Ref>& nodes, PartitionMarks& marks)
      : request_(request), nodes_(nodes), marks_(marks) {}

  Assignment run() {
    result_.partition.resize(nodes_.size());
    marks_.watch(nodes_);
    for (size_t i = 0; i < nodes_.size(); ++i) visit(NodeId(i));
    for (StateRegion& region : result_.autocast) {
      if (!region.exit.valid()) {
        raise(
            PyExc_AssertionError,
            "autocast must exit: the region of node %R is not closed; add torch.amp._exit_autocast",
            node(region.enter));
      }
    }
    close(result_.autocast, "autocast_regions: %s");
    close(result_.grad, "grad_regions: %s");
    if (result_.has_regions()) check_monotonic();
    return std::move(result_);
  }

 private:
  PyObject* node(NodeId id) const { return nodes_[id.value()].get(); }

  Ref call_callback(PyObject* for_node) const { return call(request_.callback, for_node); }

  void visit(NodeId id) {
    PyObject* self = node(id);
    result_.binders.visit(id, self);
    const Op op = fx::parse_op(fx::node_field(self, fx::symbols.node_op).get());
    if (!is_call(op)) return;

    const PartitionId partition = partition_of(call_callback(self).get());
    result_.partition[id.value()] = partition;
    PyObject* name = result_.partition_names[partition.value()].get();
    if (request_.debug != Py_None) {
      const Ref node_name = fx::node_field(self, fx::symbols.node_name);
      Ref::steal(PyObject_CallFunction(request_.debug, "sOO",
                                       "instantiate_node_partition_mapping %s (%s)",
                                       node_name.get(), name));
    }
    marks_.mark(id.value(), name);

    if (op == Op::kCallFunction) {
      const Ref target = fx::node_field(self, fx::symbols.node_target);
      if (is_global_state_target(target.get())) switch_state(id, target.get());
    }
    if (grad_active_) add_to(result_.grad.back(), self);
    for (size_t region : active_autocasts_) add_to(result_.autocast[region], self);
  }

  // Returns the partition that str(id) identifies. by_number_ avoids str() for ints, the usual ids.
  PartitionId partition_of(PyObject* id) {
    int overflow = 1;
    long long number = 0;
    if (PyLong_CheckExact(id)) number = PyLong_AsLongLongAndOverflow(id, &overflow);
    if (overflow == 0) {
      const uint32_t known = by_number_.find(static_cast<uint64_t>(number));
      if (known != core::FlatMap::kAbsent) return PartitionId(known);
    }
    const PartitionId partition = by_name(id, true);
    if (overflow == 0) by_number_.insert(static_cast<uint64_t>(number), partition.value());
    return partition;
  }

  PartitionId by_name(PyObject* id, bool may_add) {
    Ref name = partition_name(id, request_.affix);
    const size_t known = names_.size();
    const core::StringId string = names_.intern(utf8(name.get()));
    if (string.value() == known) {
      if (!may_add) {
        raise(
            PyExc_KeyError,
            "the callback returned a new partition, %U, in a second call for a node of an autocast "
            "or grad region: it must return the same id in each call for a node",
            name.get());
      }
      result_.partition_names.push_back(std::move(name));
    }
    return PartitionId(string.value());
  }

  void add_to(StateRegion& region, PyObject* self) const {
    check(PySet_Add(region.ids.get(), call_callback(self).get()));
  }

  StateRegion new_region(NodeId enter) const {
    StateRegion region;
    region.enter = enter;
    region.ids = Ref::steal(PySet_New(nullptr));
    add_to(region, node(enter));
    return region;
  }

  void switch_state(NodeId id, PyObject* target) {
    PyObject* self = node(id);
    const Ref args = fx::args_of(self);
    if (target == fx::symbols.set_grad_enabled) {
      expect_one_argument(self, args.get(), "_set_grad_enabled");
      PyObject* mode = PyTuple_GET_ITEM(args.get(), 0);
      if (!PyBool_Check(mode)) {
        raise(PyExc_AssertionError, "Expected bool arg, got %R, in node %R", Py_TYPE(mode), self);
      }
      result_.grad.push_back(new_region(id));
      grad_active_ = true;
    } else if (target == fx::symbols.enter_autocast) {
      if (std::ranges::any_of(items_of(args.get()), fx::is_node)) {
        raise(PyExc_AssertionError,
              "Expected all args to be python constants, not Nodes, in node %R", self);
      }
      active_autocasts_.push_back(result_.autocast.size());
      result_.autocast.push_back(new_region(id));
    } else {
      expect_one_argument(self, args.get(), "_exit_autocast");
      leave_autocast(id, PyTuple_GET_ITEM(args.get(), 0));
    }
  }

  static void expect_one_argument(PyObject* self, PyObject* args, const char* function) {
    if (PyTuple_GET_SIZE(args) == 1) return;
    raise(PyExc_AssertionError, "Expected 1 arg for %s, got %zd, in node %R", function,
          PyTuple_GET_SIZE(args), self);
  }

  void leave_autocast(NodeId exit, PyObject* enter) {
    for (size_t i = 0; i < active_autocasts_.size(); ++i) {
      StateRegion& region = result_.autocast[active_autocasts_[i]];
      if (node(region.enter) != enter) continue;
      add_to(region, node(exit));
      region.exit = exit;
      active_autocasts_.erase(active_autocasts_.begin() + static_cast<std::ptrdiff_t>(i));
      return;
    }
    raise(PyExc_KeyError, "node %R exits autocast for %R, which is not the node of an open region",
          node(exit), enter);
  }

  // Sets StateRegion::partitions from StateRegion::ids. All nodes must have a partition already.
  void close(std::vector<StateRegion>& regions, const char* message) {
    const Ref table = Ref::steal(PyDict_New());
    for (StateRegion& region : regions) {
      const Ref sorted = Ref::steal(PySequence_List(region.ids.get()));
      check(PyList_Sort(sorted.get()));
      check(PyDict_SetItem(table.get(), node(region.enter), sorted.get()));
      for (PyObject* id : items_of(sorted.get())) region.partitions.push_back(by_name(id, false));
    }
    if (request_.debug == Py_None) return;
    Ref::steal(PyObject_CallFunction(request_.debug, "sO", message, table.get()));
  }

  void check_monotonic() {
    Ref highest = Ref::steal(PyLong_FromLong(-1));
    for (size_t i = 0; i < nodes_.size(); ++i) {
      if (!result_.partition[i].valid()) continue;
      Ref id = call_callback(nodes_[i].get());
      if (check(PyObject_RichCompareBool(highest.get(), id.get(), Py_GT))) {
        raise(PyExc_AssertionError,
              "autocast or set_grad_enabled require monotonically increasing partitions: highest: "
              "%S, this node's: %S (node %R)",
              highest.get(), id.get(), nodes_[i].get());
      }
      highest = std::move(id);
    }
  }

  const AssignRequest& request_;
  const std::vector<Ref>& nodes_;  // all nodes of the graph, in order
  PartitionMarks& marks_;
  Assignment result_;
  core::StringPool names_;                // partition names; a name's id is its partition's id
  core::FlatMap by_number_;               // int returned by the callback -> partition
  std::vector<size_t> active_autocasts_;  // indices of open regions, in order of entry
  bool grad_active_ = false;              // whether the last region of result_.grad is open
};

}  // namespace

Assignment assign_partitions(const AssignRequest& request, const std::vector<Ref>& nodes,
                             PartitionMarks& marks) {
  return Assigner(request, nodes, marks).run();
}

}  // namespace fxpress::split
