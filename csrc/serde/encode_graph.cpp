#include <algorithm>
#include <iterator>
#include <utility>

#include "fx/arguments.h"
#include "fx/reader.h"
#include "fx/symbols.h"
#include "py/calls.h"
#include "py/containers.h"
#include "serde/graph_encoder.h"
#include "serde/scalars.h"
#include "serde/symbols.h"

namespace fxpress::serde {

const NodeEntry& NodeNames::entry_of(PyObject* node) {
  const NodeEntry* entry = values_ == nullptr ? nullptr : values_->find(node);
  if (entry == nullptr) {
    if (alone_ != nullptr && module_ == nullptr) return entry_alone(node);
    raise(PyExc_AssertionError, "node %S is not in the graph that uses it", node);
  }
  return *entry;
}

// Creates an entry for a node outside the current graph. Such nodes are arguments of a part that
// encode_part() writes.
const NodeEntry& NodeNames::entry_alone(PyObject* node) {
  Ref name = fx::node_field(node, fx::symbols.node_name);
  if (PyObject* other = dict_get(alone_, name.get())) name = Ref::borrow(other);
  const core::Op op = fx::parse_op(fx::node_field(node, fx::symbols.node_op).get());
  Table table = Table::kTensor;
  const Ref meta = fx::node_field(node, fx::symbols.node_meta);
  if (PyObject* value = dict_get(meta.get(), fx::names.val)) {
    const bool is_object = is_a(value, symbols.custom_obj_argument_type);
    const Table own = is_object ? Table::kCustomObject : table_of(value);
    if (own != Table::kNone) table = own;
  }
  alone_entries_.push_back({Ref::borrow(node), std::move(name), nullptr, 0,
                            core::PositionTable::kAbsent, op, table, false});
  return alone_entries_.back();
}

const NodeEntry& NodeNames::resolved(PyObject* node) {
  const NodeEntry& entry = entry_of(node);
  if (entry.duplicate_of == core::PositionTable::kAbsent) return entry;
  return values_->entries[entry.duplicate_of];
}

PyObject* NodeNames::tensor_name(PyObject* node) {
  const NodeEntry& entry = resolved(node);
  if (entry.op == core::Op::kGetAttr) {
    raise(symbols.serialize_error,
          "getattr nodes containing tensors should not appear in the graph");
  }
  if (entry.table == Table::kNone) {
    raise(PyExc_AssertionError, "symbol '%U' not in def_table or graph_inputs", entry.name.get());
  }
  return entry.name.get();
}

void NodeNames::remember_merged(const GraphValues& values) {
  for (const NodeEntry& entry : values.entries) {
    if (entry.duplicate_of == core::PositionTable::kAbsent) continue;
    merged_.emplace(utf8(entry.name.get()),
                    Ref::borrow(values.entries[entry.duplicate_of].name.get()));
  }
}

Ref NodeNames::name_of(PyObject* argument) const {
  Ref name = get_attr(argument, fx::names.name);
  if (merged_.empty() || !PyUnicode_Check(name.get())) return name;
  const auto merged = merged_.find(std::string(Text(name.get()).view()));
  return merged == merged_.end() ? std::move(name) : Ref::borrow(merged->second.get());
}

void GraphEncoder::graph(PyObject* graph_module) {
  // For the root graph, Python code calls on_unchanged() and then this function.
  if (depth_ == 0) return write_graph(graph_module);
  fx::on_unchanged(get_attr(graph_module, fx::names.graph).get(),
                   [&] { write_graph(graph_module); });
}

void GraphEncoder::write_graph(PyObject* graph_module) {
  constexpr size_t kMaxGraphs = 64;
  if (depth_ == kMaxGraphs)
    raise(symbols.serialize_error, "graphs are nested more than %zu deep", kMaxGraphs);
  const ProgramCheck* check = context_.check;
  GraphValues values(graph_module, operators_,
                     {check != nullptr, check != nullptr && check->functional, depth_ == 0});
  if (check != nullptr) {
    written_.insert(graph_module);
    if (!values.is_surely_valid()) throw Doubtful();
    if (depth_ == 0 && !check->is_surely_valid(values)) throw Doubtful();
  }
  const NodeNames::Within within(names_, values, graph_module);
  ++depth_;
  // Like torch, use the last output node of a graph.
  Ref output;
  const NodeEntry* output_entry = nullptr;
  try {
    for (const NodeEntry& entry : values.entries) {
      if (entry.op != core::Op::kOutput) continue;
      output_entry = &entry;
      const Ref args = fx::args_of(entry.node.get());
      if (PyTuple_GET_SIZE(args.get()) != 1) {
        raise(PyExc_AssertionError, "FX.Node's args should have one arg, got %zd",
              PyTuple_GET_SIZE(args.get()));
      }
      output = Ref::borrow(PyTuple_GET_ITEM(args.get(), 0));
    }
    out_.record(Type::Graph, [&](Field field) { graph_field(field, output.get()); });
  } catch (pybind11::error_already_set& error) {
    if (error.matches(symbols.serialize_error) || output_entry == nullptr) throw;
    node_failed(output_entry->node.get(), error);
  }
  if (--depth_ == 0) names_.remember_merged(values);  // the signature names nodes of the root graph
}

void GraphEncoder::graph_field(Field field, PyObject* output_value) {
  switch (field) {
    case Field::Graph_inputs:
      sink_.begin_list();
      for (const NodeEntry& entry : names_.values().entries) {
        if (entry.op == core::Op::kPlaceholder) graph_input(entry);
      }
      return sink_.end_list();
    case Field::Graph_outputs:
      return graph_outputs(output_value);
    case Field::Graph_nodes:
      return nodes();
    case Field::Graph_is_single_tensor_return:
      return sink_.boolean(output_value != nullptr && fx::is_node(output_value));
    default:
      break;
  }
  const auto* found = std::ranges::find(kTableFields, field, &TableFields::values);
  if (found != std::end(kTableFields)) table(static_cast<Table>(found - kTableFields));
}

void GraphEncoder::graph_input(const NodeEntry& entry) {
  if (entry.table != Table::kNone && entry.table != Table::kCustomObject) {
    return value_reference(entry.table, entry.name.get());
  }
  const Ref meta = fx::node_field(entry.node.get(), fx::symbols.node_meta);
  const Ref value = Ref::steal(PyObject_GetItem(meta.get(), fx::names.val));
  if (entry.table == Table::kNone) return argument(value.get(), nullptr);
  out_.choice(Field::Argument_as_custom_obj, [&] { custom_object(value.get(), entry.name.get()); });
}

// output_value: null if the graph does not have an output node.
void GraphEncoder::graph_outputs(PyObject* output_value) {
  sink_.begin_list();
  if (output_value != nullptr) {
    if (fx::is_node(output_value)) {
      argument(output_value, nullptr);
    } else {
      if (!PyTuple_Check(output_value) && !PyList_Check(output_value)) {
        raise(PyExc_AssertionError, "expected tuple or list, got %S", Py_TYPE(output_value));
      }
      const Ref items = Ref::steal(PySequence_Tuple(output_value));
      for (PyObject* item : items_of(items.get())) argument(item, nullptr);
    }
  }
  sink_.end_list();
}

void GraphEncoder::nodes() {
  const std::vector<NodeEntry>& entries = names_.values().entries;
  sink_.begin_list();
  for (const NodeEntry& entry : entries) {
    if (entry.function == nullptr || entry.function->kind == OperatorKind::kGetItem) continue;
    poll_signals(static_cast<size_t>(&entry - entries.data()));
    try {
      node(entry);
    } catch (pybind11::error_already_set& error) {
      node_failed(entry.node.get(), error);
    }
  }
  sink_.end_list();
}

void GraphEncoder::table(Table table) {
  sink_.begin_map();
  for (const NamedValue& value : names_.values().values) {
    if (value.table != table) continue;
    out_.key(value.name.get());
    if (table == Table::kTensor) {
      tensor_meta(value.value.get());
    } else if (table == Table::kCustomObject) {
      custom_object(value.value.get());
    } else {
      symbolic(table, value.value.get());
    }
  }
  sink_.end_map();
}

void GraphEncoder::node(const NodeEntry& entry) {
  out_.record(Type::Node, [&](Field field) {
    switch (field) {
      case Field::Node_target:
        return sink_.string(entry.function->name);
      case Field::Node_inputs:
        return inputs_of(entry);
      case Field::Node_outputs:
        return outputs(entry);
      case Field::Node_metadata:
        if (context_.metadata) return metadata(entry.node.get());
        sink_.begin_map();
        return sink_.end_map();
      case Field::Node_is_hop_single_tensor_return:
        if (entry.function->kind == OperatorKind::kHigherOrder ||
            entry.function->kind == OperatorKind::kSpecial) {
          return sink_.boolean(entry.table == Table::kTensor);
        }
        return sink_.null();
      default:
        return out_.string(entry.name.get());
    }
  });
}

void GraphEncoder::named_argument(std::string_view name, PyObject* value, int64_t kind,
                                  PyObject* type) {
  out_.record(Type::NamedArgument, [&](Field field) {
    switch (field) {
      case Field::NamedArgument_name:
        return sink_.string(name);
      case Field::NamedArgument_arg:
        return argument(value, type);
      default:
        return sink_.integer(kind);
    }
  });
}

void GraphEncoder::inputs_of(const NodeEntry& entry) {
  const Operator& function = *entry.function;
  if (function.kind == OperatorKind::kSpecial) return special_inputs(entry.node.get());
  const Ref args = fx::args_of(entry.node.get());
  const Ref kwargs = fx::kwargs_of(entry.node.get());
  inputs(function, entry.symbolic, args.get(), kwargs.get());
}

void GraphEncoder::inputs(const Operator& function, bool symbolic, PyObject* args,
                          PyObject* kwargs) {
  sink_.begin_list();
  if (symbolic) {
    symbolic_inputs(function, args, kwargs);
  } else if (function.kind == OperatorKind::kSchema) {
    schema_inputs(function, args, kwargs);
  } else {
    other_inputs(args, kwargs);
  }
  sink_.end_list();
}

// Writes the arguments of an OperatorKind::kSpecial node. Python returns [(name, value, kind)].
void GraphEncoder::special_inputs(PyObject* node) {
  const Ref inputs = call(symbols.special_inputs, node);
  sink_.begin_list();
  for (Py_ssize_t i = 0; i < PyList_Size(inputs.get()); ++i) {
    PyObject* input = PyList_GET_ITEM(inputs.get(), i);
    named_argument(utf8(PyTuple_GET_ITEM(input, 0)), PyTuple_GET_ITEM(input, 1),
                   PyLong_AsLong(PyTuple_GET_ITEM(input, 2)), nullptr);
  }
  sink_.end_list();
}

// Writes the arguments of a function on numbers, with the names of its Python parameters.
void GraphEncoder::symbolic_inputs(const Operator& function, PyObject* args, PyObject* kwargs) {
  if (PyDict_GET_SIZE(kwargs) != 0) {
    raise(PyExc_AssertionError, "expected no kwargs for sym op, got %zd", PyDict_GET_SIZE(kwargs));
  }
  if (function.kind != OperatorKind::kSymbolic && function.kind != OperatorKind::kSchema) {
    raise(PyExc_AssertionError, "op %s is not in _SYM_OPS", function.name.c_str());
  }
  const auto count = static_cast<size_t>(PyTuple_GET_SIZE(args));
  for (size_t i = 0; i < std::min(count, function.arguments.size()); ++i) {
    named_argument(function.arguments[i].name, PyTuple_GET_ITEM(args, i), kPositional, nullptr);
  }
}

void GraphEncoder::schema_inputs(const Operator& function, PyObject* args, PyObject* kwargs) {
  const auto count = static_cast<size_t>(PyTuple_GET_SIZE(args));
  const bool has_kwargs = PyDict_GET_SIZE(kwargs) != 0;
  for (size_t i = 0; i < function.arguments.size(); ++i) {
    const OperatorArgument& argument = function.arguments[i];
    PyObject* keyword = has_kwargs ? dict_get(kwargs, new_string(argument.name).get()) : nullptr;
    if (keyword != nullptr) {
      const Ref value = Ref::borrow(keyword);
      named_argument(argument.name, value.get(), kKeyword, argument.type.get());
    } else if (!argument.keyword_only && i < count) {
      named_argument(argument.name, PyTuple_GET_ITEM(args, i), kPositional, argument.type.get());
    }
  }
}

// Writes the arguments of a target without a schema; positional arguments do not have names.
void GraphEncoder::other_inputs(PyObject* args, PyObject* kwargs) {
  for (PyObject* value : items_of(args)) named_argument("", value, kPositional, nullptr);
  if (PyDict_GET_SIZE(kwargs) == 0) return;
  const Ref items = pairs_of(kwargs);
  for (PyObject* item : items_of(items.get())) {
    named_argument(utf8(PyTuple_GET_ITEM(item, 0)), PyTuple_GET_ITEM(item, 1), kKeyword, nullptr);
  }
}

void GraphEncoder::outputs(const NodeEntry& entry) {
  const GraphValues& values = names_.values();
  sink_.begin_list();
  for (const Output& output : values.outputs_of(entry)) {
    if (output.kind == Output::Kind::kNone) {
      out_.choice(Field::Argument_as_none, [&] { sink_.boolean(true); });
    } else if (output.kind == Output::Kind::kValue) {
      const NamedValue& value = values.values[output.first];
      value_reference(value.table, value.name.get());
    } else {
      out_.choice(Field::Argument_as_tensors, [&] {
        sink_.begin_list();
        for (uint32_t k = 0; k < output.count; ++k) {
          tensor(values.values[output.first + k].name.get());
        }
        sink_.end_list();
      });
    }
  }
  sink_.end_list();
}

}  // namespace fxpress::serde
