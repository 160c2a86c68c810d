#include "fx/serde/graph_values.h"

#include <algorithm>
#include <string>

#include "fx/reader.h"
#include "fx/serde/errors.h"
#include "fx/serde/symbols.h"
#include "fx/symbols.h"

namespace fxpress::fx::serde {

namespace {

uint64_t address(PyObject* object) {
  return static_cast<uint64_t>(reinterpret_cast<uintptr_t>(object));
}

bool is_instance(PyObject* object, PyObject* type) {
  return PyObject_TypeCheck(object, as_type(type)) != 0;
}

// A list or tuple as such.
Ref sequence(PyObject* object) {
  return Ref::steal(PySequence_Fast(object, "the results of an operator are not a sequence"));
}

Ref unused_name(const NodeEntry& entry, const std::string& suffix) {
  return new_string(std::string(utf8(entry.name.get())) + "_unused_" + suffix);
}

}  // namespace

Table table_of(PyObject* value) {
  if (is_instance(value, fx::symbols.tensor_type)) return Table::kTensor;
  if (PyBool_Check(value) || is_instance(value, symbols.sym_bool_type)) return Table::kSymBool;
  if (PyLong_Check(value) || is_instance(value, symbols.sym_int_type)) return Table::kSymInt;
  if (PyFloat_Check(value) || is_instance(value, symbols.sym_float_type)) return Table::kSymFloat;
  return Table::kNone;
}

GraphValues::GraphValues(PyObject* graph, OperatorTable& operators) : nodes_(list_nodes(graph)) {
  entries.reserve(nodes_.size());
  by_node_ = core::FlatMap(nodes_.size());
  for (size_t i = 0; i < nodes_.size(); ++i) {
    PyObject* node = nodes_[i].get();
    by_node_.insert(address(node), static_cast<uint32_t>(i));
    const core::Op op = parse_op(node_field(node, fx::symbols.node_op).get());
    const Operator* function = nullptr;
    if (op == core::Op::kCallFunction) {
      function = &operators.get(node_field(node, fx::symbols.node_target).get());
    }
    entries.push_back({node, node_field(node, fx::symbols.node_name), op, Table::kNone,
                       core::FlatMap::kAbsent, function, 0, 0, false});
  }
  for (NodeEntry& entry : entries) {
    poll_signals(static_cast<size_t>(&entry - entries.data()));
    entry.outputs = static_cast<uint32_t>(outputs.size());
    try {
      read(entry);
    } catch (pybind11::error_already_set& error) {
      node_failed(entry.node, error);
    }
    entry.output_count = static_cast<uint32_t>(outputs.size()) - entry.outputs;
  }
}

const NodeEntry* GraphValues::find(PyObject* node) const {
  const uint32_t position = by_node_.find(address(node));
  return position == core::FlatMap::kAbsent ? nullptr : &entries[position];
}

void GraphValues::read(NodeEntry& entry) {
  if (entry.op == core::Op::kGetAttr || entry.op == core::Op::kOutput) return;
  if (entry.op == core::Op::kCallModule || entry.op == core::Op::kCallMethod) {
    raise(PyExc_AttributeError, "a %U node cannot be written", op_name(entry.op));
  }
  if (entry.function != nullptr && entry.function->kind == OperatorKind::kGetItem) return;
  const Ref meta = node_field(entry.node, fx::symbols.node_meta);
  if (entry.op == core::Op::kCallFunction) return read_call(entry, meta.get());
  read_placeholder(entry, Ref::steal(PyObject_GetItem(meta.get(), fx::names.val)).get());
}

void GraphValues::read_placeholder(NodeEntry& entry, PyObject* value) {
  if (value == Py_None || PyLong_Check(value) || PyFloat_Check(value) || PyUnicode_Check(value)) {
    return;  // a literal: the graph's list of inputs has it
  }
  entry.table =
      is_instance(value, symbols.custom_obj_argument_type) ? Table::kCustomObject : table_of(value);
  if (entry.table == Table::kNone) {
    raise(PyExc_AssertionError, "Unimplemented graph input type: %R", value);
  }
  add_value(entry.name.get(), value, entry.table);
}

void GraphValues::read_call(NodeEntry& entry, PyObject* meta) {
  const Operator& function = *entry.function;
  const Ref held = Ref::borrow(dict_get(meta, fx::names.val));
  PyObject* value = held.get();
  const bool symbolic = value != nullptr && (is_instance(value, symbols.sym_int_type) ||
                                             is_instance(value, symbols.sym_bool_type) ||
                                             is_instance(value, symbols.sym_float_type));
  entry.symbolic = symbolic || function.kind == OperatorKind::kSymbolic;
  if (entry.symbolic) {
    return add_result(entry, value == nullptr ? Py_None : value);
  }
  if (function.kind == OperatorKind::kUnsupported) {
    raise(symbols.serialize_error, "Serializing %S is not supported",
          node_field(entry.node, fx::symbols.node_target).get());
  }
  if (function.kind == OperatorKind::kSchema && function.returns.empty()) return;
  if (value == nullptr) {
    PyErr_SetObject(PyExc_KeyError, fx::names.val);
    throw_python_error();
  }
  if (function.kind == OperatorKind::kSchema) return add_schema_results(entry, value);
  if (PyDict_Check(value)) return add_dict(entry, value);
  if (function.kind == OperatorKind::kSpecial) {
    return add_list(&entry, entry, "", value, false);
  }
  if (PyTuple_Check(value)) return add_each(entry, value);
  add_result(entry, value);
}

void GraphValues::add_schema_results(NodeEntry& entry, PyObject* results) {
  const Operator& function = *entry.function;
  if (function.single_list) return add_list(&entry, entry, "", results, false);
  if (function.returns.size() == 1) return add_result(entry, results);
  add_each(entry, results);
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
  const size_t before = names_.size();
  names_.intern(utf8(name));
  if (names_.size() == before) {
    raise(PyExc_AssertionError, "name %R is already that of another value", name);
  }
  values.push_back({Ref::borrow(name), Ref::borrow(value), table});
}

std::vector<GraphValues::User> GraphValues::users_of(const NodeEntry& entry) {
  std::vector<User> users;
  const Ref nodes = node_field(entry.node, fx::symbols.node_users);
  PyObject* user = nullptr;
  for (Py_ssize_t at = 0; PyDict_Next(nodes.get(), &at, &user, nullptr) != 0;) {
    const uint32_t position = by_node_.find(address(user));
    if (position == core::FlatMap::kAbsent || entries[position].function == nullptr ||
        entries[position].function->kind != OperatorKind::kGetItem) {
      raise(PyExc_AssertionError, "%S is not a getitem node", user);
    }
    const Ref args = node_field(user, fx::symbols.node_args);
    PyObject* index = PySequence_Size(args.get()) > 1 ? PyTuple_GetItem(args.get(), 1) : nullptr;
    if (index == nullptr) raise(PyExc_IndexError, "getitem node %S has no index", user);
    bool found = false;
    for (const User& other : users) {
      const int equal = PyObject_RichCompareBool(other.index, index, Py_EQ);
      check(equal);
      if (equal == 0) continue;
      entries[position].duplicate_of = static_cast<uint32_t>(other.entry - entries.data());
      found = true;
      break;
    }
    if (!found) users.push_back({index, &entries[position]});
  }
  return users;
}

NodeEntry* GraphValues::user_at(const std::vector<User>& users, size_t index) {
  for (const User& user : users) {
    if (PyLong_Check(user.index) &&
        PyLong_AsSsize_t(user.index) == static_cast<Py_ssize_t>(index)) {
      return user.entry;
    }
    PyErr_Clear();
  }
  return nullptr;
}

// Elements that are tensors as one list; `users_of` takes them apart, null when nobody does.
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
    if (user != nullptr) {
      user->table = Table::kTensor;
      add_value(user->name.get(), value, Table::kTensor);
    } else {
      add_value(unused_name(named_after, prefix + std::to_string(i)).get(), value, Table::kTensor);
    }
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
      if (user != nullptr) {
        user->table = table;
        add_value(user->name.get(), value, table);
      } else {
        add_value(unused_name(entry, std::to_string(i)).get(), value, table);
      }
    }
  }
}

void GraphValues::add_dict(const NodeEntry& entry, PyObject* results) {
  const std::vector<User> users = users_of(entry);
  const auto first = static_cast<uint32_t>(values.size());
  PyObject* index = nullptr;
  PyObject* value = nullptr;
  for (Py_ssize_t at = 0; PyDict_Next(results, &at, &index, &value) != 0;) {
    if (table_of(value) != Table::kTensor) {
      raise(symbols.serialize_error, "Serialize list output with type %S nyi", Py_TYPE(value));
    }
    NodeEntry* user = nullptr;
    for (const User& other : users) {
      const int equal = PyObject_RichCompareBool(other.index, index, Py_EQ);
      check(equal);
      if (equal != 0) user = other.entry;
    }
    if (user != nullptr) user->table = Table::kTensor;
    const Ref name =
        user != nullptr
            ? Ref::borrow(user->name.get())
            : unused_name(entry, std::string(utf8(Ref::steal(PyObject_Str(index)).get())));
    add_value(name.get(), value, Table::kTensor);
  }
  outputs.push_back({Output::Kind::kTensors, first, static_cast<uint32_t>(values.size()) - first});
}

}  // namespace fxpress::fx::serde
