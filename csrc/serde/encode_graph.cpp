#include "fx/arguments.h"
#include "fx/symbols.h"
#include "py/pairs.h"
#include "serde/encoder.h"
#include "serde/errors.h"
#include "serde/symbols.h"
#include "serde/text.h"

namespace fxpress::fx::serde {

namespace {

constexpr size_t kMaxGraphs = 64;   // graphs within each other
constexpr int64_t kPositional = 1;  // ArgumentKind
constexpr int64_t kKeyword = 2;

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

// Tensors whose attributes are those of C++, whatever Python says.
bool is_plain_tensor(PyObject* tensor) {
  PyObject* type = reinterpret_cast<PyObject*>(Py_TYPE(tensor));
  return type == fx::symbols.tensor_type || type == fx::symbols.parameter_type;
}

}  // namespace

void Encoder::graph(PyObject* graph_module) {
  if (depth_ == kMaxGraphs) raise(symbols.serialize_error, "graphs are nested too deeply");
  const ProgramCheck* check = context_.check;
  GraphValues values(graph_module, operators_,
                     {check != nullptr, check != nullptr && check->functional, depth_ == 0});
  if (check != nullptr) {
    visited_.insert(graph_module);
    if (!values.is_surely_valid()) throw Doubtful();
    if (depth_ == 0 && !check->is_surely_valid(values)) throw Doubtful();
  }
  GraphValues* const outer_values = std::exchange(values_, &values);
  PyObject* const outer_module = std::exchange(module_, graph_module);
  ++depth_;
  // What the graph returns; torch takes it from the last output node.
  Ref output;
  const NodeEntry* output_entry = nullptr;
  for (const NodeEntry& entry : values.entries) {
    if (entry.op != core::Op::kOutput) continue;
    const Ref args = args_of(entry.node.get());
    if (PyTuple_GET_SIZE(args.get()) != 1) {
      raise(PyExc_AssertionError, "FX.Node's args should have one arg, got %zd",
            PyTuple_GET_SIZE(args.get()));
    }
    output = Ref::borrow(PyTuple_GET_ITEM(args.get(), 0));
    output_entry = &entry;
  }
  try {
    record(Type::Graph, [&](Field field) { graph_fields(field, output.get()); });
  } catch (pybind11::error_already_set& error) {
    if (error.matches(symbols.serialize_error) || output_entry == nullptr) throw;
    node_failed(output_entry->node.get(), error);
  }
  if (--depth_ == 0) {  // the signature is that of the outermost graph
    for (const NodeEntry& entry : values.entries) {
      if (entry.duplicate_of == core::PositionTable::kAbsent) continue;
      merged_.emplace(utf8(entry.name.get()),
                      Ref::borrow(values.entries[entry.duplicate_of].name.get()));
    }
  }
  values_ = outer_values;
  module_ = outer_module;
}

void Encoder::graph_fields(Field field, PyObject* output_value) {
  const bool single = output_value != nullptr && is_node(output_value);
  switch (field) {
    case Field::Graph_inputs:
      return inputs();
    case Field::Graph_outputs:
      sink_.begin_list();
      if (single) {
        argument(output_value, nullptr);
      } else if (output_value != nullptr) {
        if (!PyTuple_Check(output_value) && !PyList_Check(output_value)) {
          raise(PyExc_AssertionError, "expected tuple or list, got %S", Py_TYPE(output_value));
        }
        const Ref items = Ref::steal(PySequence_Tuple(output_value));
        for (Py_ssize_t i = 0; i < PyTuple_GET_SIZE(items.get()); ++i) {
          argument(PyTuple_GET_ITEM(items.get(), i), nullptr);
        }
      }
      return sink_.end_list();
    case Field::Graph_nodes:
      sink_.begin_list();
      for (const NodeEntry& entry : values_->entries) {
        if (entry.function == nullptr || entry.function->kind == OperatorKind::kGetItem) continue;
        poll_signals(static_cast<size_t>(&entry - values_->entries.data()));
        try {
          node(entry);
        } catch (pybind11::error_already_set& error) {
          node_failed(entry.node.get(), error);
        }
      }
      return sink_.end_list();
    case Field::Graph_is_single_tensor_return:
      return sink_.boolean(single);
    default:
      break;
  }
  for (const Table kind :
       {Table::kTensor, Table::kSymInt, Table::kSymBool, Table::kSymFloat, Table::kCustomObject}) {
    if (table_field(kind) == field) table(kind);
  }
}

void Encoder::inputs() {
  sink_.begin_list();
  for (const NodeEntry& entry : values_->entries) {
    if (entry.op != core::Op::kPlaceholder) continue;
    if (entry.table != Table::kNone && entry.table != Table::kCustomObject) {
      value_reference(entry.table, entry.name.get());
      continue;
    }
    const Ref meta = node_field(entry.node.get(), fx::symbols.node_meta);
    const Ref value = Ref::steal(PyObject_GetItem(meta.get(), fx::names.val));
    if (entry.table == Table::kNone) {
      argument(value.get(), nullptr);
      continue;
    }
    choice(Field::Argument_as_custom_obj, [&] {
      record(Type::CustomObjArgument, [&](Field field) {
        if (field == Field::CustomObjArgument_name) return string(entry.name.get());
        string(get_attr(value.get(), names.class_fqn).get());
      });
    });
  }
  sink_.end_list();
}

void Encoder::node(const NodeEntry& entry) {
  record(Type::Node, [&](Field field) {
    switch (field) {
      case Field::Node_target:
        return sink_.string(entry.function->name);
      case Field::Node_inputs:
        sink_.begin_list();
        node_inputs(entry);
        return sink_.end_list();
      case Field::Node_outputs:
        sink_.begin_list();
        node_outputs(entry);
        return sink_.end_list();
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
        return string(entry.name.get());
    }
  });
}

void Encoder::named_argument(std::string_view name, PyObject* value, int64_t kind, PyObject* type) {
  record(Type::NamedArgument, [&](Field field) {
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

void Encoder::node_inputs(const NodeEntry& entry) {
  const Operator& function = *entry.function;
  if (function.kind == OperatorKind::kSpecial) {
    const Ref inputs = Ref::steal(PyObject_CallOneArg(symbols.special_inputs, entry.node.get()));
    for (Py_ssize_t i = 0; i < PyList_Size(inputs.get()); ++i) {
      PyObject* input = PyList_GET_ITEM(inputs.get(), i);
      named_argument(utf8(PyTuple_GET_ITEM(input, 0)), PyTuple_GET_ITEM(input, 1),
                     PyLong_AsLong(PyTuple_GET_ITEM(input, 2)), nullptr);
    }
    return;
  }
  const Ref args = args_of(entry.node.get());
  const Ref kwargs = kwargs_of(entry.node.get());
  inputs_of(function, entry.symbolic, args.get(), kwargs.get());
}

// args: tuple; kwargs: dict.
void Encoder::inputs_of(const Operator& function, bool symbolic, PyObject* args, PyObject* kwargs) {
  const auto count = static_cast<size_t>(PyTuple_GET_SIZE(args));
  if (symbolic) {
    if (PyDict_GET_SIZE(kwargs) != 0) {
      raise(PyExc_AssertionError, "expected no kwargs for sym op, got %zd",
            PyDict_GET_SIZE(kwargs));
    }
    if (function.kind != OperatorKind::kSymbolic && function.kind != OperatorKind::kSchema) {
      raise(PyExc_AssertionError, "op %s is not in _SYM_OPS", function.name.c_str());
    }
    for (size_t i = 0; i < std::min(count, function.arguments.size()); ++i) {
      named_argument(function.arguments[i].name, PyTuple_GET_ITEM(args, i), kPositional, nullptr);
    }
    return;
  }
  if (function.kind == OperatorKind::kSchema) {
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
    return;
  }
  for (size_t i = 0; i < count; ++i) {
    named_argument("", PyTuple_GET_ITEM(args, i), kPositional, nullptr);
  }
  if (PyDict_GET_SIZE(kwargs) == 0) return;
  const Ref items = pairs_of(kwargs);
  for (Py_ssize_t i = 0; i < PyList_GET_SIZE(items.get()); ++i) {
    PyObject* item = PyList_GET_ITEM(items.get(), i);
    named_argument(utf8(PyTuple_GET_ITEM(item, 0)), PyTuple_GET_ITEM(item, 1), kKeyword, nullptr);
  }
}

void Encoder::node_outputs(const NodeEntry& entry) {
  for (const Output& output : values_->outputs_of(entry)) {
    if (output.kind == Output::Kind::kNone) {
      choice(Field::Argument_as_none, [&] { sink_.boolean(true); });
    } else if (output.kind == Output::Kind::kValue) {
      const NamedValue& value = values_->values[output.first];
      value_reference(value.table, value.name.get());
    } else {
      choice(Field::Argument_as_tensors, [&] {
        sink_.begin_list();
        for (uint32_t k = 0; k < output.count; ++k) {
          name_record(Type::TensorArgument, Field::TensorArgument_name,
                      values_->values[output.first + k].name.get());
        }
        sink_.end_list();
      });
    }
  }
}

void Encoder::table(Table table) {
  sink_.begin_map();
  for (const NamedValue& value : values_->values) {
    if (value.table != table) continue;
    const Text name(value.name.get());
    sink_.key(name.view());
    if (table == Table::kTensor) {
      tensor_meta(value.value.get());
    } else if (table != Table::kCustomObject) {
      symbolic(table, value.value.get());
    } else {
      record(Type::CustomObjArgument, [&](Field field) {
        const bool is_name = field == Field::CustomObjArgument_name;
        string(get_attr(value.value.get(), is_name ? fx::names.name : names.class_fqn).get());
      });
    }
  }
  sink_.end_map();
}

void Encoder::tensor_facts(const core::TensorFacts& facts, PyObject* place) {
  const auto number = [&](int64_t value) {
    choice(Field::SymInt_as_int, [&] { sink_.integer(value); });
  };
  const auto numbers = [&](const int64_t* values) {
    sink_.begin_list();
    for (size_t i = 0; i < facts.dims; ++i) number(values[i]);
    sink_.end_list();
  };
  const auto coded = [&](PyObject* key, PyObject* table) {
    PyObject* code = dict_get(table, key);
    if (code == nullptr) {
      PyErr_SetObject(PyExc_KeyError, key);
      throw_python_error();
    }
    integer(code);
  };
  record(Type::TensorMeta, [&](Field field) {
    switch (field) {
      case Field::TensorMeta_dtype:
        return coded(static_cast<PyObject*>(facts.dtype), symbols.scalar_types);
      case Field::TensorMeta_sizes:
        return numbers(facts.sizes);
      case Field::TensorMeta_requires_grad:
        return sink_.boolean(facts.requires_grad);
      case Field::TensorMeta_device:
        return device(place);
      case Field::TensorMeta_strides:
        return numbers(facts.strides);
      case Field::TensorMeta_storage_offset:
        return number(facts.storage_offset);
      default:
        return coded(symbols.strided, symbols.layouts);
    }
  });
}

void Encoder::tensor_meta(PyObject* tensor) {
  const auto sizes = [&](PyObject* numbers) {
    const Ref held = Ref::steal(PySequence_Tuple(numbers));
    sink_.begin_list();
    for (Py_ssize_t i = 0; i < PyTuple_GET_SIZE(held.get()); ++i) {
      symbolic(Table::kSymInt, PyTuple_GET_ITEM(held.get(), i));
    }
    sink_.end_list();
  };
  core::TensorFacts facts{};
  const bool is_fake = reinterpret_cast<PyObject*>(Py_TYPE(tensor)) == fx::symbols.fake_tensor_type;
  if (read_tensor_facts != nullptr && (is_fake || is_plain_tensor(tensor)) &&
      read_tensor_facts(tensor, &facts)) {
    const Ref place = get_attr(tensor, is_fake ? symbols.fake_device : names.device);
    return tensor_facts(facts, place.get());
  }
  const auto coded = [&](PyObject* name, PyObject* table) {
    const Ref value = get_attr(tensor, name);
    integer(Ref::steal(PyObject_GetItem(table, value.get())).get());
  };
  record(Type::TensorMeta, [&](Field field) {
    switch (field) {
      case Field::TensorMeta_dtype:
        return coded(names.dtype, symbols.scalar_types);
      case Field::TensorMeta_sizes:
        return sizes(get_attr(tensor, names.shape).get());
      case Field::TensorMeta_requires_grad:
        return sink_.boolean(get_attr(tensor, names.requires_grad).get() == Py_True);
      case Field::TensorMeta_device:
        return device(get_attr(tensor, names.device).get());
      case Field::TensorMeta_strides:
        return sizes(Ref::steal(PyObject_CallMethodNoArgs(tensor, names.stride)).get());
      case Field::TensorMeta_storage_offset:
        return symbolic(Table::kSymInt,
                        Ref::steal(PyObject_CallMethodNoArgs(tensor, names.storage_offset)).get());
      default:
        return coded(names.layout, symbols.layouts);
    }
  });
}

}  // namespace fxpress::fx::serde
