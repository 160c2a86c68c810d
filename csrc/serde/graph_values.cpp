#include "serde/graph_values.h"

#include <algorithm>
#include <string>

#include "fx/arguments.h"
#include "fx/reader.h"
#include "fx/symbols.h"
#include "py/calls.h"
#include "serde/symbols.h"

namespace fxpress::serde {

namespace {

uint64_t hash_of(PyObject* name) {
  const Py_hash_t hash = PyObject_Hash(name);
  if (hash == -1) throw_python_error();
  return static_cast<uint64_t>(hash);
}

// Returns a copy of an operator's results, because Python code may run while they are read.
Ref sequence(PyObject* object) {
  if (PyList_Check(object) || PyTuple_Check(object)) return Ref::steal(PySequence_Tuple(object));
  return Ref::steal(PySequence_Fast(object, "the results of an operator are not a sequence"));
}

// Whether meta["val"] surely has a type that torch's verifier allows. table: table_of(value).
bool is_value(PyObject* value, Table table, int depth = 0) {
  if (table != Table::kNone || value == Py_None || PyUnicode_Check(value)) return true;
  if (is_a(value, symbols.custom_obj_argument_type) || is_a(value, symbols.dtype_type) ||
      is_a(value, symbols.device_type) || is_a(value, symbols.layout_type) ||
      is_a(value, symbols.memory_format_type)) {
    return true;
  }
  constexpr int kDeep = 8;
  if ((!PyTuple_Check(value) && !PyList_Check(value)) || depth == kDeep) return false;
  for (PyObject* item : items_of(value)) {
    if (!is_value(item, table_of(item), depth + 1)) return false;
  }
  return true;
}

}  // namespace

void node_failed(PyObject* node, pybind11::error_already_set& error) {
  if (!error.matches(PyExc_Exception)) throw error;
  if (error.trace()) PyException_SetTraceback(error.value().ptr(), error.trace().ptr());
  call(symbols.node_failed, node, error.value().ptr());
  throw error;  // unreachable: node_failed() raises
}

Table table_of(PyObject* value) {
  if (is_a(value, fx::symbols.tensor_type)) return Table::kTensor;
  if (PyBool_Check(value) || is_a(value, symbols.sym_bool_type)) return Table::kSymBool;
  if (PyLong_Check(value) || is_a(value, symbols.sym_int_type)) return Table::kSymInt;
  if (PyFloat_Check(value) || is_a(value, symbols.sym_float_type)) return Table::kSymFloat;
  return Table::kNone;
}

// Calls call(). Converts an exception to SerializeError with the node. If checks are on, converts
// it to Doubtful instead, because torch's verifier may find the program invalid.
template <class F>
void GraphValues::guarded(PyObject* node, F&& call) const {
  try {
    call();
  } catch (pybind11::error_already_set& error) {
    if (options_.checks && error.matches(PyExc_Exception)) throw Doubtful();
    node_failed(node, error);
  }
}

GraphValues::GraphValues(PyObject* module, OperatorTable& operators, const Options& options)
    : module_(module), options_(options) {
  const Ref graph = get_attr(module, fx::names.graph);
  add_entries(fx::list_nodes(graph.get()), operators);
  valid_ &= get_attr(graph.get(), fx::names.owning_module).get() == module;
  for (NodeEntry& entry : entries) {
    poll_signals(static_cast<size_t>(&entry - entries.data()));
    entry.outputs = static_cast<uint32_t>(outputs.size());
    if (options.checks) verify(entry, graph.get());
    guarded(entry.node.get(), [&] { read(entry); });
  }
}

GraphValues::GraphValues(std::vector<Ref> nodes, OperatorTable& operators)
    : module_(nullptr), options_{false, false, false} {
  add_entries(std::move(nodes), operators);
  read(entries.front());
  for (NodeEntry& entry : entries) {
    if (&entry != &entries.front()) entry.outputs = static_cast<uint32_t>(outputs.size());
  }
}

void GraphValues::add_entries(std::vector<Ref> nodes, OperatorTable& operators) {
  entries.reserve(nodes.size());
  outputs.reserve(nodes.size());
  values.reserve(nodes.size());
  by_node_ = core::PositionTable(nodes.size());
  names_ = core::PositionTable(nodes.size());
  for (size_t i = 0; i < nodes.size(); ++i) {
    PyObject* node = nodes[i].get();
    const auto position = static_cast<uint32_t>(i);
    by_node_.insert(ObjectTable::key(node), position, [](uint32_t) { return false; });
    const core::Op op = fx::parse_op(fx::node_field(node, fx::symbols.node_op).get());
    const Operator* function = nullptr;
    if (op == core::Op::kCallFunction) {
      guarded(node, [&] {
        function = &operators.get(fx::node_field(node, fx::symbols.node_target).get());
      });
    }
    Ref name = fx::node_field(node, fx::symbols.node_name);
    entries.push_back({std::move(nodes[i]), std::move(name), function, 0,
                       core::PositionTable::kAbsent, op, Table::kNone, false});
    valid_ &= add_name(entries.back().name.get(), position);
  }
}

std::span<const Output> GraphValues::outputs_of(const NodeEntry& entry) const {
  const bool last = &entry == &entries.back();
  const size_t end = last ? outputs.size() : (&entry + 1)->outputs;
  return std::span(outputs).subspan(entry.outputs, end - entry.outputs);
}

bool GraphValues::is_name_at(PyObject* name, uint32_t position) const {
  const bool of_node = position < entries.size();
  PyObject* other = (of_node ? entries[position].name : unused_[position - entries.size()]).get();
  return name == other || PyUnicode_Compare(name, other) == 0;
}

bool GraphValues::has_node(PyObject* name) const {
  const auto is_same = [&](uint32_t position) { return is_name_at(name, position); };
  return names_.find(hash_of(name), is_same) < entries.size();
}

// Adds a name; returns false if another value already has it.
bool GraphValues::add_name(PyObject* name, uint32_t position) {
  if (names_.full()) {  // the first table has space for all nodes, not for many unused results
    core::PositionTable larger(2 * static_cast<size_t>(position));
    const auto differ = [](uint32_t) { return false; };
    for (uint32_t i = 0; i < position; ++i) {
      const Ref& other = i < entries.size() ? entries[i].name : unused_[i - entries.size()];
      larger.insert(hash_of(other.get()), i, differ);
    }
    names_ = std::move(larger);
  }
  const auto is_same = [&](uint32_t other) { return is_name_at(name, other); };
  const auto hash = hash_of(name);
  return names_.insert(hash, position, is_same) == position;
}

bool GraphValues::is_attribute(PyObject* target) const {
  Ref at = Ref::borrow(module_);
  for (std::string_view rest = utf8(target); at;) {
    const size_t dot = rest.find('.');
    at = find_attr(at.get(), new_string(rest.substr(0, dot)).get());
    if (dot == std::string_view::npos) break;
    rest.remove_prefix(dot + 1);
  }
  if (!at) return false;
  return is_a(at.get(), fx::symbols.graph_module_type) ||
         (!options_.top_level && is_a(at.get(), fx::symbols.tensor_type));
}

// Applies the rules of Graph.lint() and torch's verifier to a node, except to its meta["val"],
// which read() checks.
void GraphValues::verify(const NodeEntry& entry, PyObject* graph) {
  if (!valid_) return;
  PyObject* node = entry.node.get();
  valid_ = get_attr(node, fx::names.graph).get() == graph;
  const auto own = static_cast<uint32_t>(&entry - entries.data());
  const Ref inputs = fx::dict_field(node, fx::symbols.node_input_nodes);
  for (const auto& [input, _] : DictRange(inputs.get())) valid_ &= position_of(input) < own;
  if (entry.op == core::Op::kCallFunction) {
    valid_ &= options_.functional ? entry.function->is_functional : entry.function->is_allowed;
    return;
  }
  const Ref target = fx::node_field(node, fx::symbols.node_target);
  valid_ &= PyUnicode_Check(target.get()) != 0;
  if (entry.op == core::Op::kGetAttr) {
    valid_ = valid_ && is_attribute(target.get());
  } else if (entry.op == core::Op::kOutput) {
    valid_ &= own + 1 == entries.size();
  } else {
    valid_ &= entry.op == core::Op::kPlaceholder;
  }
}

uint32_t GraphValues::position_of(PyObject* node) const {
  return by_node_.find(ObjectTable::key(node),
                       [&](uint32_t position) { return entries[position].node.get() == node; });
}

const NodeEntry* GraphValues::find(PyObject* node) const {
  const uint32_t position = position_of(node);
  return position == core::PositionTable::kAbsent ? nullptr : &entries[position];
}

void GraphValues::read(NodeEntry& entry) {
  if (entry.op == core::Op::kGetAttr || entry.op == core::Op::kOutput) return;
  if (entry.op == core::Op::kCallModule || entry.op == core::Op::kCallMethod) {
    raise(PyExc_AttributeError, "a %U node cannot be serialized", fx::op_name(entry.op));
  }
  const Ref meta = fx::node_field(entry.node.get(), fx::symbols.node_meta);
  if (entry.function != nullptr && entry.function->kind == OperatorKind::kGetItem) {
    PyObject* value = dict_get(meta.get(), fx::names.val);
    valid_ &= value != nullptr && is_value(value, table_of(value));
    return;
  }
  if (entry.op == core::Op::kCallFunction) return read_call(entry, meta.get());
  read_placeholder(entry, Ref::steal(PyObject_GetItem(meta.get(), fx::names.val)).get());
}

void GraphValues::read_placeholder(NodeEntry& entry, PyObject* value) {
  valid_ &= is_value(value, table_of(value));
  if (value == Py_None || PyLong_Check(value) || PyFloat_Check(value) || PyUnicode_Check(value)) {
    return;  // a literal is written in the list of inputs, not in a table
  }
  entry.table =
      is_a(value, symbols.custom_obj_argument_type) ? Table::kCustomObject : table_of(value);
  if (entry.table == Table::kNone) {
    raise(PyExc_AssertionError, "Unimplemented graph input type: %R", value);
  }
  add_value(entry.name.get(), value, entry.table);
}

void GraphValues::read_call(NodeEntry& entry, PyObject* meta) {
  const Operator& function = *entry.function;
  const Ref held = Ref::borrow(dict_get(meta, fx::names.val));
  PyObject* value = held.get();
  const bool no_results = function.kind == OperatorKind::kSchema && function.returns.empty();
  valid_ &= value == nullptr ? no_results : is_value(value, table_of(value));
  const bool symbolic = value != nullptr &&
                        (is_a(value, symbols.sym_int_type) || is_a(value, symbols.sym_bool_type) ||
                         is_a(value, symbols.sym_float_type));
  entry.symbolic = symbolic || function.kind == OperatorKind::kSymbolic;
  if (entry.symbolic) {
    return add_result(entry, value == nullptr ? Py_None : value);
  }
  if (function.kind == OperatorKind::kUnsupported) {
    raise(symbols.serialize_error, "Serializing %S is not supported",
          fx::node_field(entry.node.get(), fx::symbols.node_target).get());
  }
  if (no_results) return;
  if (value == nullptr) {
    PyErr_SetObject(PyExc_KeyError, fx::names.val);
    throw_python_error();
  }
  if (function.kind == OperatorKind::kSchema) {
    const bool is_list = function.returns_single(ReturnKind::kTensorList);
    if (is_list) return add_list(&entry, entry, "", value, false);
    return function.returns.size() == 1 ? add_result(entry, value) : add_each(entry, value);
  }
  if (PyDict_Check(value)) return add_dict(entry, value);
  if (function.kind == OperatorKind::kSpecial) {
    return add_list(&entry, entry, "", value, false);
  }
  if (PyTuple_Check(value)) return add_each(entry, value);
  add_result(entry, value);
}

void GraphValues::add_result(NodeEntry& entry, PyObject* value) {
  if (value == Py_None) {
    outputs.push_back({Output::Kind::kNone, 0, 0});
    return;
  }
  entry.table = table_of(value);
  if (entry.table == Table::kNone) {
    raise(symbols.serialize_error, "Unable to serialize output %R", value);
  }
  outputs.push_back({Output::Kind::kValue, static_cast<uint32_t>(values.size()), 1});
  add_value(entry.name.get(), value, entry.table);
}

void GraphValues::add_value(PyObject* name, PyObject* value, Table table) {
  values.push_back({Ref::borrow(name), Ref::borrow(value), table});
}

// Adds one of a node's results. Its name is the name of the getitem node `user` that takes it, or a
// new name if `user` is null.
void GraphValues::add_part(NodeEntry* user, const NodeEntry& named_after, const std::string& suffix,
                           PyObject* value, Table table) {
  if (user != nullptr) {
    user->table = table;
    return add_value(user->name.get(), value, table);
  }
  unused_.push_back(new_string(std::string(utf8(named_after.name.get())) + "_unused_" + suffix));
  PyObject* name = unused_.back().get();
  if (!add_name(name, static_cast<uint32_t>(entries.size() + unused_.size() - 1))) {
    raise(PyExc_AssertionError, "another value already has the name %R", name);
  }
  add_value(name, value, table);
}

std::vector<GraphValues::User> GraphValues::users_of(const NodeEntry& entry) {
  std::vector<User> users;
  for (DictItems nodes(fx::dict_field(entry.node.get(), fx::symbols.node_users).get());
       nodes.next();) {
    PyObject* user = nodes.key();
    const uint32_t position = position_of(user);
    if (position == core::PositionTable::kAbsent || entries[position].function == nullptr ||
        entries[position].function->kind != OperatorKind::kGetItem) {
      raise(PyExc_AssertionError, "%S is not a getitem node", user);
    }
    const Ref args = fx::args_of(user);
    if (PyTuple_GET_SIZE(args.get()) < 2) {
      raise(PyExc_IndexError, "getitem node %S does not have an index", user);
    }
    Ref index = Ref::borrow(PyTuple_GET_ITEM(args.get(), 1));
    bool found = false;
    for (const User& other : users) {
      if (!is_equal(other.index.get(), index.get())) continue;
      entries[position].duplicate_of = static_cast<uint32_t>(other.entry - entries.data());
      found = true;
      break;
    }
    if (!found) users.push_back({std::move(index), &entries[position]});
  }
  return users;
}

NodeEntry* GraphValues::user_at(const std::vector<User>& users, size_t index) {
  for (const User& user : users) {
    if (PyLong_Check(user.index.get()) &&
        PyLong_AsSsize_t(user.index.get()) == static_cast<Py_ssize_t>(index)) {
      return user.entry;
    }
    PyErr_Clear();
  }
  return nullptr;
}

// Adds a list of tensors as one output. taken_from: the node whose getitem users take the tensors,
// or null. A tensor without a getitem node is named after `named_after` and `prefix`.
void GraphValues::add_list(const NodeEntry* taken_from, const NodeEntry& named_after,
                           const std::string& prefix, PyObject* results, bool skip_none) {
  const std::vector<User> users =
      taken_from == nullptr ? std::vector<User>() : users_of(*taken_from);
  const Ref items = sequence(results);
  const auto first = static_cast<uint32_t>(values.size());
  for (Py_ssize_t i = 0; i < PySequence_Fast_GET_SIZE(items.get()); ++i) {
    PyObject* value = PySequence_Fast_GET_ITEM(items.get(), i);
    if (skip_none && value == Py_None) continue;
    if (table_of(value) != Table::kTensor) {
      raise(symbols.serialize_error, "Serialize list output with type %S nyi", Py_TYPE(value));
    }
    NodeEntry* user = user_at(users, static_cast<size_t>(i));
    add_part(user, named_after, prefix + std::to_string(i), value, Table::kTensor);
  }
  outputs.push_back({Output::Kind::kTensors, first, static_cast<uint32_t>(values.size()) - first});
}

void GraphValues::add_each(const NodeEntry& entry, PyObject* results) {
  const std::vector<User> users = users_of(entry);
  const Ref items = sequence(results);
  Py_ssize_t count = PySequence_Fast_GET_SIZE(items.get());
  if (entry.function->kind == OperatorKind::kSchema) {
    count = std::min(count, static_cast<Py_ssize_t>(entry.function->returns.size()));
  }
  for (Py_ssize_t i = 0; i < count; ++i) {
    PyObject* value = PySequence_Fast_GET_ITEM(items.get(), i);
    NodeEntry* user = user_at(users, static_cast<size_t>(i));
    if (value == Py_None) {
      outputs.push_back({Output::Kind::kNone, 0, 0});
    } else if (PyList_Check(value)) {
      const bool schema = entry.function->kind == OperatorKind::kSchema;
      if (user != nullptr) {
        add_list(user, *user, "", value, schema);
      } else {
        add_list(nullptr, entry, std::to_string(i) + "_", value, schema);
      }
    } else {
      const Table table = table_of(value);
      if (table == Table::kNone) {
        raise(symbols.serialize_error, "Unable to serialize output %R", value);
      }
      outputs.push_back({Output::Kind::kValue, static_cast<uint32_t>(values.size()), 1});
      add_part(user, entry, std::to_string(i), value, table);
    }
  }
}

void GraphValues::add_dict(const NodeEntry& entry, PyObject* results) {
  const std::vector<User> users = users_of(entry);
  const auto first = static_cast<uint32_t>(values.size());
  for (DictItems items(results); items.next();) {
    PyObject* index = items.key();
    PyObject* value = items.value();
    if (table_of(value) != Table::kTensor) {
      raise(symbols.serialize_error, "Serialize list output with type %S nyi", Py_TYPE(value));
    }
    NodeEntry* user = nullptr;
    for (const User& other : users) {
      if (is_equal(other.index.get(), index)) user = other.entry;
    }
    const Ref suffix = Ref::steal(PyObject_Str(index));
    add_part(user, entry, std::string(utf8(suffix.get())), value, Table::kTensor);
  }
  outputs.push_back({Output::Kind::kTensors, first, static_cast<uint32_t>(values.size()) - first});
}

}  // namespace fxpress::serde
