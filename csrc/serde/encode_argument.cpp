#include <algorithm>

#include "core/budget.h"
#include "fx/symbols.h"
#include "py/calls.h"
#include "py/containers.h"
#include "serde/graph_encoder.h"
#include "serde/scalars.h"
#include "serde/symbols.h"

namespace fxpress::serde {

namespace {

// The maximum number of dicts in a program's arguments. A dict that occurs several times is written
// each time, so nested shared dicts could make the output exponentially large.
constexpr size_t kMostDicts = size_t{1} << 22;

bool is_sequence(PyObject* value) {
  return PyList_Check(value) || PyTuple_Check(value);
}

template <class F>
bool all_of(PyObject* list, F&& test) {
  return std::ranges::all_of(items_of(list), test);
}

bool all_exactly(PyObject* items, PyTypeObject& kind) {
  return all_of(items, [&](PyObject* item) { return Py_TYPE(item) == &kind; });
}

}  // namespace

void GraphEncoder::argument(PyObject* value, PyObject* type) {
  PyTypeObject* kind = Py_TYPE(value);
  if (fx::is_node(value)) return node_argument(value);
  if (kind == &PyBool_Type) {
    return out_.choice(Field::Argument_as_bool, [&] { sink_.boolean(value == Py_True); });
  }
  if (kind == &PyUnicode_Type) {
    return out_.choice(Field::Argument_as_string, [&] { out_.string(value); });
  }
  if (kind == &PyLong_Type) {
    return out_.choice(Field::Argument_as_int, [&] { out_.integer(value); });
  }
  if (kind == &PyFloat_Type) {
    return out_.choice(Field::Argument_as_float, [&] { sink_.real(PyFloat_AS_DOUBLE(value)); });
  }
  if (value == Py_None) {
    return out_.choice(Field::Argument_as_none, [&] { sink_.boolean(true); });
  }
  if (PyList_Check(value) || PyTuple_Check(value)) return list(value, type);
  const auto coded = [&](Field field, PyObject* table) {
    out_.choice(field, [&] { out_.integer(Ref::steal(PyObject_GetItem(table, value)).get()); });
  };
  if (is_a(value, symbols.dtype_type)) {
    return coded(Field::Argument_as_scalar_type, symbols.scalar_types);
  }
  if (is_a(value, symbols.device_type)) {
    return out_.choice(Field::Argument_as_device, [&] { device(value); });
  }
  if (is_a(value, symbols.memory_format_type)) {
    return coded(Field::Argument_as_memory_format, symbols.memory_formats);
  }
  if (is_a(value, symbols.layout_type)) return coded(Field::Argument_as_layout, symbols.layouts);
  if (kind == &PyComplex_Type) return complex_number(value);
  if (PyDict_Check(value)) {
    return out_.choice(Field::Argument_as_string_to_argument, [&] { dict(value); });
  }
  other_argument(value);
}

void GraphEncoder::value_reference(Table table, PyObject* name) {
  if (table != Table::kSymInt && table != Table::kSymFloat && table != Table::kSymBool) {
    return out_.choice(Field::Argument_as_tensor, [&] { tensor(name); });
  }
  const TableFields& fields = kTableFields[static_cast<size_t>(table)];
  out_.choice(fields.argument, [&] { out_.choice(fields.name, [&] { out_.string(name); }); });
}

void GraphEncoder::node_argument(PyObject* node) {
  const NodeEntry& entry = names_.resolved(node);
  if (entry.op == core::Op::kGetAttr) return attribute(node);
  if (entry.table == Table::kCustomObject) {
    const Ref meta = fx::node_field(node, fx::symbols.node_meta);
    const Ref value = Ref::steal(PyObject_GetItem(meta.get(), fx::names.val));
    return out_.choice(Field::Argument_as_custom_obj,
                       [&] { custom_object(value.get(), entry.name.get()); });
  }
  if (entry.table != Table::kNone && entry.table != Table::kTensor) {
    return value_reference(entry.table, entry.name.get());
  }
  value_reference(Table::kTensor, names_.tensor_name(node));
}

// Writes the attribute of a get_attr node: a subgraph, or a lowered module, which Python encodes.
void GraphEncoder::attribute(PyObject* node) {
  const Ref target = fx::node_field(node, fx::symbols.node_target);
  const Ref module = names_.module() != nullptr
                         ? Ref::borrow(names_.module())
                         : get_attr(get_attr(node, fx::names.graph).get(), fx::names.owning_module);
  const Ref value = get_attr(module.get(), target.get());
  if (is_a(value.get(), fx::symbols.tensor_type))
    names_.tensor_name(node);  // raises SerializeError, because a tensor is not a subgraph
  if (is_a(value.get(), fx::symbols.graph_module_type)) {
    return out_.choice(Field::Argument_as_graph, [&] {
      out_.record(Type::GraphArgument, [&](Field field) {
        if (field == Field::GraphArgument_name) return out_.string(target.get());
        graph(value.get());
      });
    });
  }
  const Ref text = call(symbols.module_argument, value, target);
  out_.choice(Field::Argument_as_string, [&] { out_.string(text.get()); });
}

void GraphEncoder::complex_number(PyObject* value) {
  out_.choice(Field::Argument_as_complex, [&] {
    out_.record(Type::ComplexValue, [&](Field field) {
      sink_.real(field == Field::ComplexValue_real ? PyComplex_RealAsDouble(value)
                                                   : PyComplex_ImagAsDouble(value));
    });
  });
}

void GraphEncoder::dict(PyObject* dict) {
  const RecursionGuard guard(" in an argument of a graph");
  core::check_stack("an argument of a graph");
  if (++dicts_ > kMostDicts) {
    raise(symbols.serialize_error, "the arguments contain more than %zu dicts", kMostDicts);
  }
  const Ref items = pairs_of(dict);
  sink_.begin_map();
  for (PyObject* item : items_of(items.get())) {
    PyObject* key = PyTuple_GET_ITEM(item, 0);
    if (!PyUnicode_Check(key)) {
      raise(symbols.serialize_error, "Dict keys must be strings, got %S", Py_TYPE(key));
    }
    out_.key(key);
    argument(PyTuple_GET_ITEM(item, 1), nullptr);
  }
  sink_.end_map();
}

// Writes a value of a rare type. Python returns (field of Argument, text) for the value. If the
// field is as_custom_obj, it returns (field, name, class).
void GraphEncoder::other_argument(PyObject* value) {
  const Ref described = call(symbols.other_argument, value, context_.objects);
  PyObject* text = PyTuple_GET_ITEM(described.get(), 1);
  const std::string_view kind = utf8(PyTuple_GET_ITEM(described.get(), 0));
  if (kind == "as_operator") {
    return out_.choice(Field::Argument_as_operator, [&] { out_.string(text); });
  }
  if (kind == "as_tensor") return value_reference(Table::kTensor, text);
  if (kind == "as_sym_int") return value_reference(Table::kSymInt, text);
  if (kind == "as_sym_float") return value_reference(Table::kSymFloat, text);
  out_.choice(Field::Argument_as_custom_obj, [&] {
    out_.record(Type::CustomObjArgument, [&](Field field) {
      const bool is_name = field == Field::CustomObjArgument_name;
      out_.string(is_name ? text : PyTuple_GET_ITEM(described.get(), 2));
    });
  });
}

void GraphEncoder::list(PyObject* list, PyObject* type) {
  const Ref held = Ref::steal(PySequence_Tuple(list));
  PyObject* items = held.get();
  if (PySequence_Fast_GET_SIZE(items) == 0) return empty_list(type);
  if (plain_list(items) || number_list(items) || tensor_list(items) || nested_list(items)) return;
  other_list(items);
}

// Writes an empty list. type: the type that the operator's schema declares; it decides which field
// of the union Argument is written.
void GraphEncoder::empty_list(PyObject* type) {
  const Ref tag = call(symbols.empty_list_tag, type == nullptr ? Py_None : type);
  const auto& info = out_.schema().type(Type::Argument);
  const int place = info.find(utf8(tag.get()));
  out_.choice(info.fields[static_cast<size_t>(place)].id, [&] {
    sink_.begin_list();
    sink_.end_list();
  });
}

template <class F>
bool GraphEncoder::write_list(Field field, PyObject* items, F&& each) {
  out_.choice(field, [&] { out_.list(items, each); });
  return true;
}

bool GraphEncoder::plain_list(PyObject* items) {
  if (all_exactly(items, PyBool_Type)) {
    return write_list(Field::Argument_as_bools, items,
                      [&](PyObject* x) { sink_.boolean(x == Py_True); });
  }
  if (all_exactly(items, PyLong_Type)) {
    return write_list(Field::Argument_as_ints, items, [&](PyObject* x) { out_.integer(x); });
  }
  if (all_exactly(items, PyFloat_Type)) {
    return write_list(Field::Argument_as_floats, items,
                      [&](PyObject* x) { sink_.real(PyFloat_AS_DOUBLE(x)); });
  }
  if (all_exactly(items, PyUnicode_Type)) {
    return write_list(Field::Argument_as_strings, items, [&](PyObject* x) { out_.string(x); });
  }
  return false;
}

// Writes a list of numbers, symbolic numbers and nodes, if one field can contain all items.
bool GraphEncoder::number_list(PyObject* items) {
  const auto in_table = [&](PyObject* item, Table table) {
    return fx::is_node(item) && names_.resolved(item).table == table;
  };
  if (all_of(items, [](PyObject* x) {
        return Py_TYPE(x) == &PyLong_Type || is_a(x, symbols.sym_int_type);
      })) {
    return numbers(Table::kSymInt, items);
  }
  if (all_of(items, [](PyObject* x) { return is_a(x, symbols.sym_float_type); })) {
    return numbers(Table::kSymFloat, items);
  }
  if (all_of(items, [&](PyObject* x) {
        return Py_TYPE(x) == &PyLong_Type || in_table(x, Table::kSymInt);
      })) {
    return numbers(Table::kSymInt, items);
  }
  if (all_of(items,
             [&](PyObject* x) { return PyFloat_Check(x) || in_table(x, Table::kSymFloat); })) {
    return numbers(Table::kSymFloat, items);
  }
  if (all_of(items, [&](PyObject* x) { return PyBool_Check(x) || in_table(x, Table::kSymBool); })) {
    return numbers(Table::kSymBool, items);
  }
  return false;
}

// Writes a list of numbers. Writes a node by name, and a symbolic number (from Inductor) as text.
bool GraphEncoder::numbers(Table table, PyObject* items) {
  const TableFields& fields = kTableFields[static_cast<size_t>(table)];
  const auto each = [&](PyObject* item) {
    if (fx::is_node(item)) {
      return out_.choice(fields.name, [&] { out_.string(names_.resolved(item).name.get()); });
    }
    if (PyBool_Check(item)) {
      return out_.choice(fields.constant, [&] { sink_.boolean(item == Py_True); });
    }
    if (PyLong_Check(item)) return out_.choice(fields.constant, [&] { out_.integer(item); });
    if (PyFloat_Check(item)) {
      return out_.choice(fields.constant, [&] { sink_.real(PyFloat_AS_DOUBLE(item)); });
    }
    out_.choice(fields.name, [&] { out_.string(Ref::steal(PyObject_Str(item)).get()); });
  };
  return write_list(fields.arguments, items, each);
}

bool GraphEncoder::tensor_list(PyObject* items) {
  const auto by_node = [&](PyObject* x) { tensor(names_.tensor_name(x)); };
  if (all_of(items, fx::is_node)) return write_list(Field::Argument_as_tensors, items, by_node);
  const auto nodes_only = [&](PyObject* x) {
    return is_sequence(x) && all_of(Ref::steal(PySequence_Fast(x, "")).get(), fx::is_node);
  };
  if (all_of(items, nodes_only)) {
    return write_list(Field::Argument_as_nested_tensors, items, [&](PyObject* x) {
      out_.list(Ref::steal(PySequence_Fast(x, "")).get(), by_node);
    });
  }
  if (all_of(items, [&](PyObject* x) { return x == Py_None || fx::is_node(x); })) {
    return write_list(Field::Argument_as_optional_tensors, items, [&](PyObject* x) {
      optional_tensor(x == Py_None ? x : names_.tensor_name(x));
    });
  }
  return false;
}

// Writes a list of lists or tuples of numbers. For example, the grid of a Triton kernel is a list
// of int tuples. Older torch releases do not write lists of int lists.
bool GraphEncoder::nested_list(PyObject* items) {
  const auto ints_only = [](PyObject* x) {
    const bool is_list = symbols.lists_of_int_lists == Py_True && PyList_Check(x);
    return (is_list || PyTuple_Check(x)) &&
           all_exactly(Ref::steal(PySequence_Fast(x, "")).get(), PyLong_Type);
  };
  if (all_of(items, ints_only)) {
    return write_list(Field::Argument_as_int_lists, items, [&](PyObject* x) {
      out_.list(Ref::steal(PySequence_Fast(x, "")).get(), [&](PyObject* y) { out_.integer(y); });
    });
  }
  const auto floats_only = [&](PyObject* x) {
    return is_sequence(x) && all_of(Ref::steal(PySequence_Fast(x, "")).get(),
                                    [](PyObject* y) { return PyFloat_Check(y) != 0; });
  };
  if (all_of(items, floats_only)) {
    return write_list(Field::Argument_as_float_lists, items, [&](PyObject* x) {
      out_.list(Ref::steal(PySequence_Fast(x, "")).get(),
                [&](PyObject* y) { sink_.real(real_of(y)); });
    });
  }
  return false;
}

// Writes a list of None and Inductor's buffers. Python's other_list() returns the buffers' names.
void GraphEncoder::other_list(PyObject* items) {
  const Ref described = call(symbols.other_list, items);
  PyObject* texts = PyTuple_GET_ITEM(described.get(), 1);
  if (PyTuple_GET_ITEM(described.get(), 0) == Py_True) {
    return out_.choice(Field::Argument_as_optional_tensors,
                       [&] { out_.list(texts, [&](PyObject* name) { optional_tensor(name); }); });
  }
  out_.choice(Field::Argument_as_tensors,
              [&] { out_.list(texts, [&](PyObject* name) { tensor(name); }); });
}

void GraphEncoder::optional_tensor(PyObject* name) {
  if (name == Py_None) {
    return out_.choice(Field::OptionalTensorArgument_as_none, [&] { sink_.boolean(true); });
  }
  out_.choice(Field::OptionalTensorArgument_as_tensor, [&] { tensor(name); });
}

void GraphEncoder::tensor(PyObject* name) {
  out_.record(Type::TensorArgument, [&](Field) { out_.string(name); });
}

}  // namespace fxpress::serde
