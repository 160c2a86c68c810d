#include "serde/encode_argument.h"

#include "core/budget.h"
#include "fx/symbols.h"
#include "py/pairs.h"
#include "serde/encode_graph.h"
#include "serde/symbols.h"

namespace fxpress::serde {

namespace {

// Arguments may share their parts without number, and a part is written each time: no more dicts
// than this are written.
constexpr size_t kMostDicts = size_t{1} << 22;

}  // namespace

void ArgumentEncoder::argument(PyObject* value, PyObject* type) {
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
  if (PyList_Check(value) || PyTuple_Check(value)) return lists_.list(value, type);
  const auto coded = [&](Field field, PyObject* table) {
    out_.choice(field, [&] { out_.integer(Ref::steal(PyObject_GetItem(table, value)).get()); });
  };
  if (is_a(value, symbols.dtype_type)) {
    return coded(Field::Argument_as_scalar_type, symbols.scalar_types);
  }
  if (is_a(value, symbols.device_type)) {
    return out_.choice(Field::Argument_as_device, [&] { values_.device(value); });
  }
  if (is_a(value, symbols.memory_format_type)) {
    return coded(Field::Argument_as_memory_format, symbols.memory_formats);
  }
  if (is_a(value, symbols.layout_type)) return coded(Field::Argument_as_layout, symbols.layouts);
  if (kind == &PyComplex_Type) return complex_number(value);
  if (PyDict_Check(value)) {
    return out_.choice(Field::Argument_as_string_to_argument, [&] { dict(value); });
  }
  other(value);
}

void ArgumentEncoder::value_reference(Table table, PyObject* name) {
  const auto by_name = [&](Field field, Field as_name) {
    out_.choice(field, [&] { out_.choice(as_name, [&] { out_.string(name); }); });
  };
  switch (table) {
    case Table::kSymInt:
      return by_name(Field::Argument_as_sym_int, Field::SymIntArgument_as_name);
    case Table::kSymFloat:
      return by_name(Field::Argument_as_sym_float, Field::SymFloatArgument_as_name);
    case Table::kSymBool:
      return by_name(Field::Argument_as_sym_bool, Field::SymBoolArgument_as_name);
    default:
      return out_.choice(Field::Argument_as_tensor, [&] {
        out_.name_record(Type::TensorArgument, Field::TensorArgument_name, name);
      });
  }
}

void ArgumentEncoder::custom_object(PyObject* name, PyObject* spec) {
  out_.choice(Field::Argument_as_custom_obj, [&] {
    out_.record(Type::CustomObjArgument, [&](Field field) {
      if (field == Field::CustomObjArgument_name) return out_.string(name);
      out_.string(get_attr(spec, names.class_fqn).get());
    });
  });
}

void ArgumentEncoder::node_argument(PyObject* node) {
  const NodeEntry& entry = names_.resolved(node);
  if (entry.op == core::Op::kGetAttr) return attribute(node);
  if (entry.table == Table::kCustomObject) {
    const Ref meta = fx::node_field(node, fx::symbols.node_meta);
    const Ref value = Ref::steal(PyObject_GetItem(meta.get(), fx::names.val));
    return custom_object(entry.name.get(), value.get());
  }
  if (entry.table != Table::kNone && entry.table != Table::kTensor) {
    return value_reference(entry.table, entry.name.get());
  }
  value_reference(Table::kTensor, names_.tensor_name(node));
}

// A get_attr node stands for a graph, or for what Python writes as a text.
void ArgumentEncoder::attribute(PyObject* node) {
  const Ref target = fx::node_field(node, fx::symbols.node_target);
  const Ref module = names_.module() != nullptr
                         ? Ref::borrow(names_.module())
                         : get_attr(get_attr(node, fx::names.graph).get(), fx::names.owning_module);
  const Ref value = get_attr(module.get(), target.get());
  if (is_a(value.get(), fx::symbols.tensor_type)) names_.tensor_name(node);  // raises
  if (is_a(value.get(), fx::symbols.graph_module_type)) {
    return out_.choice(Field::Argument_as_graph, [&] {
      out_.record(Type::GraphArgument, [&](Field field) {
        if (field == Field::GraphArgument_name) return out_.string(target.get());
        graphs_within_.graph(value.get());
      });
    });
  }
  PyObject* arguments[] = {value.get(), target.get()};
  const Ref text = Ref::steal(PyObject_Vectorcall(symbols.module_argument, arguments, 2, nullptr));
  out_.choice(Field::Argument_as_string, [&] { out_.string(text.get()); });
}

void ArgumentEncoder::complex_number(PyObject* value) {
  out_.choice(Field::Argument_as_complex, [&] {
    out_.record(Type::ComplexValue, [&](Field field) {
      sink_.real(field == Field::ComplexValue_real ? PyComplex_RealAsDouble(value)
                                                   : PyComplex_ImagAsDouble(value));
    });
  });
}

void ArgumentEncoder::dict(PyObject* dict) {
  const RecursionGuard guard(" in an argument of a graph");
  core::check_stack("an argument of a graph");
  if (++dicts_ > kMostDicts) {
    raise(symbols.serialize_error, "the dicts among the arguments are too many");
  }
  const Ref items = pairs_of(dict);
  sink_.begin_map();
  for (Py_ssize_t i = 0; i < PyList_GET_SIZE(items.get()); ++i) {
    PyObject* key = PyTuple_GET_ITEM(PyList_GET_ITEM(items.get(), i), 0);
    if (!PyUnicode_Check(key)) {
      raise(symbols.serialize_error, "Dict keys must be strings, got %S", Py_TYPE(key));
    }
    out_.key(key);
    argument(PyTuple_GET_ITEM(PyList_GET_ITEM(items.get(), i), 1), nullptr);
  }
  sink_.end_map();
}

// Values that Python describes: (name of the field, text), or (as_custom_obj, name, class).
void ArgumentEncoder::other(PyObject* value) {
  PyObject* arguments[] = {value, objects_};
  const Ref described =
      Ref::steal(PyObject_Vectorcall(symbols.other_argument, arguments, 2, nullptr));
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

}  // namespace fxpress::serde
