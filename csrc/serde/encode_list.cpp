#include "serde/encode_list.h"

#include "fx/symbols.h"
#include "serde/symbols.h"

namespace fxpress::serde {

namespace {

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

bool all_exactly(PyObject* items, PyTypeObject& kind) {
  return all_of(items, [&](PyObject* item) { return Py_TYPE(item) == &kind; });
}

}  // namespace

void ListEncoder::list(PyObject* list, PyObject* type) {
  const Ref held = Ref::steal(PySequence_Tuple(list));
  PyObject* items = held.get();
  if (PySequence_Fast_GET_SIZE(items) == 0) return empty_list(type);
  if (plain_list(items) || number_list(items) || tensor_list(items) || nested_list(items)) return;
  other_list(items);
}

// Only the schema of the operator says what an empty list is a list of.
void ListEncoder::empty_list(PyObject* type) {
  const Ref tag =
      Ref::steal(PyObject_CallOneArg(symbols.empty_list_tag, type == nullptr ? Py_None : type));
  const auto& info = out_.schema().type(Type::Argument);
  const int place = info.find(utf8(tag.get()));
  out_.choice(info.fields[static_cast<size_t>(place)].id, [&] {
    sink_.begin_list();
    sink_.end_list();
  });
}

template <class F>
bool ListEncoder::write(Field field, PyObject* items, F&& each) {
  out_.choice(field, [&] { out_.list(items, each); });
  return true;
}

bool ListEncoder::plain_list(PyObject* items) {
  if (all_exactly(items, PyBool_Type)) {
    return write(Field::Argument_as_bools, items,
                 [&](PyObject* x) { sink_.boolean(x == Py_True); });
  }
  if (all_exactly(items, PyLong_Type)) {
    return write(Field::Argument_as_ints, items, [&](PyObject* x) { out_.integer(x); });
  }
  if (all_exactly(items, PyFloat_Type)) {
    return write(Field::Argument_as_floats, items,
                 [&](PyObject* x) { sink_.real(PyFloat_AS_DOUBLE(x)); });
  }
  if (all_exactly(items, PyUnicode_Type)) {
    return write(Field::Argument_as_strings, items, [&](PyObject* x) { out_.string(x); });
  }
  return false;
}

// Writes numbers of which some are symbolic or results of nodes.
bool ListEncoder::number_list(PyObject* items) {
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

// Symbolic numbers are written as they print (Inductor has them), nodes by their names.
bool ListEncoder::numbers(Table table, PyObject* items) {
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
  return write(fields.list, items, each);
}

bool ListEncoder::tensor_list(PyObject* items) {
  const auto by_node = [&](PyObject* x) { tensor(names_.tensor_name(x)); };
  if (all_of(items, fx::is_node)) return write(Field::Argument_as_tensors, items, by_node);
  const auto nodes_only = [&](PyObject* x) {
    return is_sequence(x) && all_of(Ref::steal(PySequence_Fast(x, "")).get(), fx::is_node);
  };
  if (all_of(items, nodes_only)) {
    return write(Field::Argument_as_nested_tensors, items, [&](PyObject* x) {
      out_.list(Ref::steal(PySequence_Fast(x, "")).get(), by_node);
    });
  }
  if (all_of(items, [&](PyObject* x) { return x == Py_None || fx::is_node(x); })) {
    return write(Field::Argument_as_optional_tensors, items,
                 [&](PyObject* x) { optional_tensor(x == Py_None ? x : names_.tensor_name(x)); });
  }
  return false;
}

// Writes lists of lists of numbers: grids of Triton kernels are lists of tuples. Older releases of
// torch have no place for lists of lists of ints.
bool ListEncoder::nested_list(PyObject* items) {
  const auto ints_only = [](PyObject* x) {
    const bool is_list = symbols.lists_of_int_lists == Py_True && PyList_Check(x);
    return (is_list || PyTuple_Check(x)) &&
           all_exactly(Ref::steal(PySequence_Fast(x, "")).get(), PyLong_Type);
  };
  if (all_of(items, ints_only)) {
    return write(Field::Argument_as_int_lists, items, [&](PyObject* x) {
      out_.list(Ref::steal(PySequence_Fast(x, "")).get(), [&](PyObject* y) { out_.integer(y); });
    });
  }
  const auto floats_only = [&](PyObject* x) {
    return is_sequence(x) && all_of(Ref::steal(PySequence_Fast(x, "")).get(),
                                    [](PyObject* y) { return PyFloat_Check(y) != 0; });
  };
  if (all_of(items, floats_only)) {
    return write(Field::Argument_as_float_lists, items, [&](PyObject* x) {
      out_.list(Ref::steal(PySequence_Fast(x, "")).get(),
                [&](PyObject* y) { sink_.real(real_of(y)); });
    });
  }
  return false;
}

// Lists that Python describes: names of tensors, some of them None.
void ListEncoder::other_list(PyObject* items) {
  const Ref described = Ref::steal(PyObject_CallOneArg(symbols.other_list, items));
  PyObject* texts = PyTuple_GET_ITEM(described.get(), 1);
  if (PyTuple_GET_ITEM(described.get(), 0) == Py_True) {
    return out_.choice(Field::Argument_as_optional_tensors,
                       [&] { out_.list(texts, [&](PyObject* name) { optional_tensor(name); }); });
  }
  out_.choice(Field::Argument_as_tensors,
              [&] { out_.list(texts, [&](PyObject* name) { tensor(name); }); });
}

void ListEncoder::optional_tensor(PyObject* name) {
  if (name == Py_None) {
    return out_.choice(Field::OptionalTensorArgument_as_none, [&] { sink_.boolean(true); });
  }
  out_.choice(Field::OptionalTensorArgument_as_tensor, [&] { tensor(name); });
}

void ListEncoder::tensor(PyObject* name) {
  out_.name_record(Type::TensorArgument, Field::TensorArgument_name, name);
}

}  // namespace fxpress::serde
