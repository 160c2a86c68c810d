#include "core/budget.h"
#include "fx/symbols.h"
#include "py/pairs.h"
#include "serde/encoder.h"
#include "serde/symbols.h"
#include "serde/text.h"

namespace fxpress::fx::serde {

namespace {

// Of all arguments: parts may be shared without number, and are written each time.
constexpr size_t kMostDicts = size_t{1} << 22;

bool is_sequence(PyObject* value) {
  return PyList_Check(value) || PyTuple_Check(value);
}

template <class F>
bool all_of(PyObject* list, F&& test) {
  for (Py_ssize_t i = 0; i < PySequence_Fast_GET_SIZE(list); ++i) {
    if (!test(PySequence_Fast_GET_ITEM(list, i))) return false;
  }
  return true;
}

template <class F>
void for_each(PyObject* list, F&& visit) {
  for (Py_ssize_t i = 0; i < PySequence_Fast_GET_SIZE(list); ++i) {
    visit(PySequence_Fast_GET_ITEM(list, i));
  }
}

double real_of(PyObject* value) {
  const double result = PyFloat_AsDouble(value);
  if (result == -1.0 && PyErr_Occurred() != nullptr) throw_python_error();
  return result;
}

}  // namespace

void Encoder::open_union(Field field) {
  const int place = schema_.place(field);
  const auto& info = schema_.type(Schema::owner(field));
  if (place < 0) {
    raise(symbols.unsupported_error,
          "the %s of this graph has no place in the schema of this torch", info.name.c_str());
  }
  sink_.begin_union(info, static_cast<size_t>(place));
}

void Encoder::string(PyObject* value) {
  sink_.string(Text(value).view());
}

void Encoder::integer(PyObject* value) {
  write_integer(value, sink_);
}

void Encoder::name_record(Type type, Field field, PyObject* name) {
  record(type, [&](Field at) {
    if (at == field) string(name);
  });
}

const NodeEntry& Encoder::entry_of(PyObject* node) {
  const NodeEntry* entry = values_ == nullptr ? nullptr : values_->find(node);
  if (entry == nullptr) {
    if (alone_ != nullptr && depth_ == 0) return entry_alone(node);
    raise(PyExc_AssertionError, "node %S is not in the graph that uses it", node);
  }
  return *entry;
}

// The entry of a node; of two nodes that take the same result, that of the first.
const NodeEntry& Encoder::resolved(PyObject* node) {
  const NodeEntry& entry = entry_of(node);
  if (entry.duplicate_of == core::PositionTable::kAbsent) return entry;
  return values_->entries[entry.duplicate_of];
}

// The name under which a tensor is used.
PyObject* Encoder::tensor_name(PyObject* node) {
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

void Encoder::value_reference(Table table, PyObject* name) {
  const auto by_name = [&](Field field, Field as_name) {
    choice(field, [&] { choice(as_name, [&] { string(name); }); });
  };
  switch (table) {
    case Table::kSymInt:
      return by_name(Field::Argument_as_sym_int, Field::SymIntArgument_as_name);
    case Table::kSymFloat:
      return by_name(Field::Argument_as_sym_float, Field::SymFloatArgument_as_name);
    case Table::kSymBool:
      return by_name(Field::Argument_as_sym_bool, Field::SymBoolArgument_as_name);
    default:
      return choice(Field::Argument_as_tensor,
                    [&] { name_record(Type::TensorArgument, Field::TensorArgument_name, name); });
  }
}

void Encoder::node_argument(PyObject* node) {
  const NodeEntry& entry = resolved(node);
  if (entry.op == core::Op::kGetAttr) {
    const Ref target = node_field(node, fx::symbols.node_target);
    const Ref module = module_ != nullptr ? Ref::borrow(module_)
                                          : get_attr(get_attr(node, fx::names.graph).get(),
                                                     fx::names.owning_module);
    const Ref attribute = get_attr(module.get(), target.get());
    if (is_a(attribute.get(), fx::symbols.tensor_type)) tensor_name(node);  // raises
    if (is_a(attribute.get(), fx::symbols.graph_module_type)) {
      return subgraph(node, attribute.get(), target.get());
    }
    PyObject* arguments[] = {attribute.get(), target.get()};
    const Ref text =
        Ref::steal(PyObject_Vectorcall(symbols.module_argument, arguments, 2, nullptr));
    return choice(Field::Argument_as_string, [&] { string(text.get()); });
  }
  if (entry.table == Table::kCustomObject) {
    const Ref meta = node_field(node, fx::symbols.node_meta);
    const Ref value = Ref::steal(PyObject_GetItem(meta.get(), fx::names.val));
    return choice(Field::Argument_as_custom_obj, [&] {
      record(Type::CustomObjArgument, [&](Field field) {
        if (field == Field::CustomObjArgument_name) return string(entry.name.get());
        string(get_attr(value.get(), names.class_fqn).get());
      });
    });
  }
  if (entry.table != Table::kNone && entry.table != Table::kTensor) {
    return value_reference(entry.table, entry.name.get());
  }
  value_reference(Table::kTensor, tensor_name(node));
}

void Encoder::subgraph(PyObject*, PyObject* module, PyObject* name) {
  choice(Field::Argument_as_graph, [&] {
    record(Type::GraphArgument, [&](Field field) {
      if (field == Field::GraphArgument_name) return string(name);
      graph(module);
    });
  });
}

void Encoder::argument(PyObject* value, PyObject* type) {
  PyTypeObject* kind = Py_TYPE(value);
  if (is_node(value)) return node_argument(value);
  if (kind == &PyBool_Type) {
    return choice(Field::Argument_as_bool, [&] { sink_.boolean(value == Py_True); });
  }
  if (kind == &PyUnicode_Type) return choice(Field::Argument_as_string, [&] { string(value); });
  if (kind == &PyLong_Type) return choice(Field::Argument_as_int, [&] { integer(value); });
  if (kind == &PyFloat_Type) {
    return choice(Field::Argument_as_float, [&] { sink_.real(PyFloat_AS_DOUBLE(value)); });
  }
  if (value == Py_None) return choice(Field::Argument_as_none, [&] { sink_.boolean(true); });
  if (is_sequence(value)) return list_argument(value, type);
  const auto coded = [&](Field field, PyObject* table) {
    choice(field, [&] { integer(Ref::steal(PyObject_GetItem(table, value)).get()); });
  };
  if (is_a(value, symbols.dtype_type)) {
    return coded(Field::Argument_as_scalar_type, symbols.scalar_types);
  }
  if (is_a(value, symbols.device_type)) {
    return choice(Field::Argument_as_device, [&] { device(value); });
  }
  if (is_a(value, symbols.memory_format_type)) {
    return coded(Field::Argument_as_memory_format, symbols.memory_formats);
  }
  if (is_a(value, symbols.layout_type)) return coded(Field::Argument_as_layout, symbols.layouts);
  if (kind == &PyComplex_Type) {
    return choice(Field::Argument_as_complex, [&] {
      record(Type::ComplexValue, [&](Field field) {
        sink_.real(field == Field::ComplexValue_real ? PyComplex_RealAsDouble(value)
                                                     : PyComplex_ImagAsDouble(value));
      });
    });
  }
  if (PyDict_Check(value)) {
    return choice(Field::Argument_as_string_to_argument, [&] {
      const RecursionGuard guard(" in an argument of a graph");
      core::check_stack("an argument of a graph");
      if (++dicts_ > kMostDicts) {
        raise(symbols.serialize_error, "the dicts among the arguments are too many");
      }
      const Ref items = pairs_of(value);
      sink_.begin_map();
      for (Py_ssize_t i = 0; i < PyList_GET_SIZE(items.get()); ++i) {
        PyObject* key = PyTuple_GET_ITEM(PyList_GET_ITEM(items.get(), i), 0);
        if (!PyUnicode_Check(key)) {
          raise(symbols.serialize_error, "Dict keys must be strings, got %S", Py_TYPE(key));
        }
        sink_.key(Text(key).view());
        argument(PyTuple_GET_ITEM(PyList_GET_ITEM(items.get(), i), 1), nullptr);
      }
      sink_.end_map();
    });
  }
  other_argument(value);
}

// Values that Python describes: (name of the field, text), or (as_custom_obj, name, class).
void Encoder::other_argument(PyObject* value) {
  PyObject* arguments[] = {value, context_.objects};
  const Ref described =
      Ref::steal(PyObject_Vectorcall(symbols.other_argument, arguments, 2, nullptr));
  PyObject* text = PyTuple_GET_ITEM(described.get(), 1);
  const std::string_view kind = utf8(PyTuple_GET_ITEM(described.get(), 0));
  if (kind == "as_operator") return choice(Field::Argument_as_operator, [&] { string(text); });
  if (kind == "as_tensor") return value_reference(Table::kTensor, text);
  if (kind == "as_sym_int") return value_reference(Table::kSymInt, text);
  if (kind == "as_sym_float") return value_reference(Table::kSymFloat, text);
  choice(Field::Argument_as_custom_obj, [&] {
    record(Type::CustomObjArgument, [&](Field field) {
      const bool is_name = field == Field::CustomObjArgument_name;
      string(is_name ? text : PyTuple_GET_ITEM(described.get(), 2));
    });
  });
}

void Encoder::list_argument(PyObject* list, PyObject* type) {
  const Ref held = Ref::steal(PySequence_Tuple(list));
  PyObject* items = held.get();
  const auto write = [&](Field field, auto&& each) {
    choice(field, [&] {
      sink_.begin_list();
      for_each(items, each);
      sink_.end_list();
    });
  };
  if (PySequence_Fast_GET_SIZE(items) == 0) {
    const Ref tag =
        Ref::steal(PyObject_CallOneArg(symbols.empty_list_tag, type == nullptr ? Py_None : type));
    const int place = schema_.type(Type::Argument).find(utf8(tag.get()));
    return write(schema_.type(Type::Argument).fields[static_cast<size_t>(place)].id,
                 [](PyObject*) {});
  }
  const auto all_exactly = [&](PyTypeObject& kind) {
    return all_of(items, [&](PyObject* item) { return Py_TYPE(item) == &kind; });
  };
  const auto in_table = [&](PyObject* item, Table table) {
    return is_node(item) && resolved(item).table == table;
  };
  if (all_exactly(PyBool_Type)) {
    return write(Field::Argument_as_bools, [&](PyObject* x) { sink_.boolean(x == Py_True); });
  }
  if (all_exactly(PyLong_Type)) {
    return write(Field::Argument_as_ints, [&](PyObject* x) { integer(x); });
  }
  if (all_exactly(PyFloat_Type)) {
    return write(Field::Argument_as_floats, [&](PyObject* x) { sink_.real(PyFloat_AS_DOUBLE(x)); });
  }
  if (all_exactly(PyUnicode_Type)) {
    return write(Field::Argument_as_strings, [&](PyObject* x) { string(x); });
  }
  const auto int_or_symbol = [&](PyObject* x) {
    return Py_TYPE(x) == &PyLong_Type || is_a(x, symbols.sym_int_type);
  };
  if (all_of(items, int_or_symbol)) return number_list(Table::kSymInt, items);
  if (all_of(items, [&](PyObject* x) { return is_a(x, symbols.sym_float_type); })) {
    return number_list(Table::kSymFloat, items);
  }
  if (all_of(items, [&](PyObject* x) {
        return Py_TYPE(x) == &PyLong_Type || in_table(x, Table::kSymInt);
      })) {
    return number_list(Table::kSymInt, items);
  }
  if (all_of(items,
             [&](PyObject* x) { return PyFloat_Check(x) || in_table(x, Table::kSymFloat); })) {
    return number_list(Table::kSymFloat, items);
  }
  if (all_of(items, [&](PyObject* x) { return PyBool_Check(x) || in_table(x, Table::kSymBool); })) {
    return number_list(Table::kSymBool, items);
  }
  const auto tensor = [&](PyObject* x) {
    name_record(Type::TensorArgument, Field::TensorArgument_name, tensor_name(x));
  };
  if (all_of(items, is_node)) return write(Field::Argument_as_tensors, tensor);
  const auto nodes_only = [&](PyObject* x) {
    return is_sequence(x) && all_of(Ref::steal(PySequence_Fast(x, "")).get(), is_node);
  };
  if (all_of(items, nodes_only)) {
    return write(Field::Argument_as_nested_tensors, [&](PyObject* x) {
      sink_.begin_list();
      for_each(Ref::steal(PySequence_Fast(x, "")).get(), tensor);
      sink_.end_list();
    });
  }
  if (all_of(items, [&](PyObject* x) { return x == Py_None || is_node(x); })) {
    return write(Field::Argument_as_optional_tensors, [&](PyObject* x) {
      if (x == Py_None) {
        return choice(Field::OptionalTensorArgument_as_none, [&] { sink_.boolean(true); });
      }
      choice(Field::OptionalTensorArgument_as_tensor, [&] { tensor(x); });
    });
  }
  const auto ints_only = [&](PyObject* x) {
    return PyTuple_Check(x) && all_of(x, [](PyObject* y) { return Py_TYPE(y) == &PyLong_Type; });
  };
  if (all_of(items, ints_only)) {
    return write(Field::Argument_as_int_lists, [&](PyObject* x) {
      sink_.begin_list();
      for_each(x, [&](PyObject* y) { integer(y); });
      sink_.end_list();
    });
  }
  const auto floats_only = [&](PyObject* x) {
    return is_sequence(x) && all_of(Ref::steal(PySequence_Fast(x, "")).get(),
                                    [](PyObject* y) { return PyFloat_Check(y) != 0; });
  };
  if (all_of(items, floats_only)) {
    return write(Field::Argument_as_float_lists, [&](PyObject* x) {
      sink_.begin_list();
      for_each(Ref::steal(PySequence_Fast(x, "")).get(),
               [&](PyObject* y) { sink_.real(real_of(y)); });
      sink_.end_list();
    });
  }
  other_list(items);
}

// Numbers, nodes that are numbers, and symbolic numbers as they print (Inductor has them).
void Encoder::number_list(Table table, PyObject* list) {
  struct Fields {
    Field list, name, constant;
  };
  const Fields fields = table == Table::kSymInt
                            ? Fields{Field::Argument_as_sym_ints, Field::SymIntArgument_as_name,
                                     Field::SymIntArgument_as_int}
                        : table == Table::kSymFloat
                            ? Fields{Field::Argument_as_sym_floats, Field::SymFloatArgument_as_name,
                                     Field::SymFloatArgument_as_float}
                            : Fields{Field::Argument_as_sym_bools, Field::SymBoolArgument_as_name,
                                     Field::SymBoolArgument_as_bool};
  choice(fields.list, [&] {
    sink_.begin_list();
    for_each(list, [&](PyObject* item) {
      if (is_node(item)) {
        return choice(fields.name, [&] { string(resolved(item).name.get()); });
      }
      if (PyBool_Check(item)) {
        return choice(fields.constant, [&] { sink_.boolean(item == Py_True); });
      }
      if (PyLong_Check(item)) return choice(fields.constant, [&] { integer(item); });
      if (PyFloat_Check(item)) {
        return choice(fields.constant, [&] { sink_.real(PyFloat_AS_DOUBLE(item)); });
      }
      choice(fields.name, [&] { string(Ref::steal(PyObject_Str(item)).get()); });
    });
    sink_.end_list();
  });
}

// Lists that Python describes: names of tensors, some of them None.
void Encoder::other_list(PyObject* list) {
  const Ref described = Ref::steal(PyObject_CallOneArg(symbols.other_list, list));
  PyObject* texts = PyTuple_GET_ITEM(described.get(), 1);
  const bool optional = PyTuple_GET_ITEM(described.get(), 0) == Py_True;
  const auto tensor = [&](PyObject* name) {
    name_record(Type::TensorArgument, Field::TensorArgument_name, name);
  };
  choice(optional ? Field::Argument_as_optional_tensors : Field::Argument_as_tensors, [&] {
    sink_.begin_list();
    for_each(texts, [&](PyObject* name) {
      if (!optional) return tensor(name);
      if (name == Py_None) {
        return choice(Field::OptionalTensorArgument_as_none, [&] { sink_.boolean(true); });
      }
      choice(Field::OptionalTensorArgument_as_tensor, [&] { tensor(name); });
    });
    sink_.end_list();
  });
}

// Most tensors of a program are on one device.
void Encoder::device(PyObject* device) {
  bool known = device_.get() == device;
  if (!known && device_ && Py_TYPE(device) == Py_TYPE(device_.get())) {
    const int same = PyObject_RichCompareBool(device_.get(), device, Py_EQ);
    if (same < 0) throw_python_error();
    known = same == 1;
  }
  if (!known) {
    device_type_ = get_attr(device, names.type);
    device_index_ = get_attr(device, names.index);
    device_ = Ref::borrow(device);
  }
  record(Type::Device, [&](Field field) {
    if (field == Field::Device_type) return string(device_type_.get());
    if (device_index_.get() == Py_None) return sink_.null();
    integer(device_index_.get());
  });
}

void Encoder::symbolic(Table table, PyObject* value) {
  struct Fields {
    Field constant, expression, hint;
  };
  const Fields fields =
      table == Table::kSymInt
          ? Fields{Field::SymInt_as_int, Field::SymInt_as_expr, Field::SymExprHint_as_int}
      : table == Table::kSymFloat
          ? Fields{Field::SymFloat_as_float, Field::SymFloat_as_expr, Field::SymExprHint_as_float}
          : Fields{Field::SymBool_as_bool, Field::SymBool_as_expr, Field::SymExprHint_as_bool};
  const auto number = [&](PyObject* constant) {
    if (table == Table::kSymBool) return sink_.boolean(PyObject_IsTrue(constant) == 1);
    if (table == Table::kSymFloat) return sink_.real(real_of(constant));
    integer(constant);
  };
  Ref described;
  PyObject* constant = value;
  if (!PyLong_Check(value) && !PyFloat_Check(value)) {
    described = Ref::steal(PyObject_CallOneArg(symbols.symbolic, value));
    constant = described.get();
  }
  if (!PyTuple_Check(constant)) return choice(fields.constant, [&] { number(constant); });
  choice(fields.expression, [&] {
    record(Type::SymExpr, [&](Field field) {
      if (field == Field::SymExpr_expr_str) return string(PyTuple_GET_ITEM(constant, 0));
      PyObject* hint = PyTuple_GET_ITEM(constant, 1);
      if (hint == Py_None) return sink_.null();
      choice(fields.hint, [&] { number(hint); });
    });
  });
}

}  // namespace fxpress::fx::serde
