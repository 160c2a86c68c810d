#include "serde/encode_graph.h"

#include "fx/arguments.h"
#include "fx/symbols.h"
#include "serde/errors.h"
#include "serde/symbols.h"

namespace fxpress::serde {

namespace {

constexpr size_t kMaxGraphs = 64;  // graphs within each other

Field table_field(Table table) {
  switch (table) {
    case Table::kTensor:
      return Field::Graph_tensor_values;
    case Table::kSymInt:
      return Field::Graph_sym_int_values;
    case Table::kSymBool:
      return Field::Graph_sym_bool_values;
    case Table::kSymFloat:
      return Field::Graph_sym_float_values;
    default:
      return Field::Graph_custom_obj_values;
  }
}

}  // namespace

void GraphEncoder::graph(PyObject* graph_module) {
  if (depth_ == kMaxGraphs) raise(symbols.serialize_error, "graphs are nested too deeply");
  const ProgramCheck* check = to_.context.check;
  GraphValues values(graph_module, to_.operators,
                     {check != nullptr, check != nullptr && check->functional, depth_ == 0});
  if (check != nullptr) {
    written_.insert(graph_module);
    if (!values.is_surely_valid()) throw Doubtful();
    if (depth_ == 0 && !check->is_surely_valid(values)) throw Doubtful();
  }
  const NodeNames::Within within(to_.names, values, graph_module);
  ++depth_;
  // torch takes the value that a graph returns from its last output node.
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
    out_.record(Type::Graph, [&](Field field) { this->field(field, output.get()); });
  } catch (pybind11::error_already_set& error) {
    if (error.matches(symbols.serialize_error) || output_entry == nullptr) throw;
    node_failed(output_entry->node.get(), error);
  }
  if (--depth_ == 0) to_.names.remember_merged(values);  // the signature is that of this graph
}

void GraphEncoder::field(Field field, PyObject* output_value) {
  switch (field) {
    case Field::Graph_inputs:
      return inputs();
    case Field::Graph_outputs:
      return outputs(output_value);
    case Field::Graph_nodes:
      return nodes();
    case Field::Graph_is_single_tensor_return:
      return sink_.boolean(output_value != nullptr && fx::is_node(output_value));
    default:
      break;
  }
  for (const Table kind :
       {Table::kTensor, Table::kSymInt, Table::kSymBool, Table::kSymFloat, Table::kCustomObject}) {
    if (table_field(kind) == field) table(kind);
  }
}

void GraphEncoder::inputs() {
  sink_.begin_list();
  for (const NodeEntry& entry : to_.names.values().entries) {
    if (entry.op == core::Op::kPlaceholder) input(entry);
  }
  sink_.end_list();
}

void GraphEncoder::input(const NodeEntry& entry) {
  if (entry.table != Table::kNone && entry.table != Table::kCustomObject) {
    return arguments_.value_reference(entry.table, entry.name.get());
  }
  const Ref meta = fx::node_field(entry.node.get(), fx::symbols.node_meta);
  const Ref value = Ref::steal(PyObject_GetItem(meta.get(), fx::names.val));
  if (entry.table == Table::kNone) return arguments_.argument(value.get(), nullptr);
  arguments_.custom_object(entry.name.get(), value.get());
}

// output_value: null when the graph has no output node.
void GraphEncoder::outputs(PyObject* output_value) {
  sink_.begin_list();
  if (output_value != nullptr) {
    if (fx::is_node(output_value)) {
      arguments_.argument(output_value, nullptr);
    } else {
      if (!PyTuple_Check(output_value) && !PyList_Check(output_value)) {
        raise(PyExc_AssertionError, "expected tuple or list, got %S", Py_TYPE(output_value));
      }
      const Ref items = Ref::steal(PySequence_Tuple(output_value));
      for (Py_ssize_t i = 0; i < PyTuple_GET_SIZE(items.get()); ++i) {
        arguments_.argument(PyTuple_GET_ITEM(items.get(), i), nullptr);
      }
    }
  }
  sink_.end_list();
}

void GraphEncoder::nodes() {
  const std::vector<NodeEntry>& entries = to_.names.values().entries;
  sink_.begin_list();
  for (const NodeEntry& entry : entries) {
    if (entry.function == nullptr || entry.function->kind == OperatorKind::kGetItem) continue;
    poll_signals(static_cast<size_t>(&entry - entries.data()));
    try {
      nodes_.node(entry);
    } catch (pybind11::error_already_set& error) {
      node_failed(entry.node.get(), error);
    }
  }
  sink_.end_list();
}

void GraphEncoder::table(Table table) {
  sink_.begin_map();
  for (const NamedValue& value : to_.names.values().values) {
    if (value.table != table) continue;
    out_.key(value.name.get());
    if (table == Table::kTensor) {
      values_.tensor_meta(value.value.get());
    } else if (table == Table::kCustomObject) {
      values_.custom_object(value.value.get());
    } else {
      values_.symbolic(table, value.value.get());
    }
  }
  sink_.end_map();
}

}  // namespace fxpress::serde
