#include "serde/encode_node.h"

#include <algorithm>

#include "fx/arguments.h"
#include "py/pairs.h"
#include "serde/symbols.h"

namespace fxpress::serde {

namespace {

constexpr int64_t kPositional = 1;  // ArgumentKind in the schema
constexpr int64_t kKeyword = 2;

}  // namespace

void NodeEncoder::node(const NodeEntry& entry) {
  out_.record(Type::Node, [&](Field field) {
    switch (field) {
      case Field::Node_target:
        return sink_.string(entry.function->name);
      case Field::Node_inputs:
        return inputs_of(entry);
      case Field::Node_outputs:
        return outputs(entry);
      case Field::Node_metadata:
        if (with_metadata_) return metadata_.metadata(entry.node.get());
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

void NodeEncoder::named_argument(std::string_view name, PyObject* value, int64_t kind,
                                 PyObject* type) {
  out_.record(Type::NamedArgument, [&](Field field) {
    switch (field) {
      case Field::NamedArgument_name:
        return sink_.string(name);
      case Field::NamedArgument_arg:
        return arguments_.argument(value, type);
      default:
        return sink_.integer(kind);
    }
  });
}

void NodeEncoder::inputs_of(const NodeEntry& entry) {
  const Operator& function = *entry.function;
  if (function.kind == OperatorKind::kSpecial) return special_inputs(entry.node.get());
  const Ref args = fx::args_of(entry.node.get());
  const Ref kwargs = fx::kwargs_of(entry.node.get());
  inputs(function, entry.symbolic, args.get(), kwargs.get());
}

void NodeEncoder::inputs(const Operator& function, bool symbolic, PyObject* args,
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

// Python prepares the arguments of these operators: [(name, value, kind)].
void NodeEncoder::special_inputs(PyObject* node) {
  const Ref inputs = Ref::steal(PyObject_CallOneArg(symbols.special_inputs, node));
  sink_.begin_list();
  for (Py_ssize_t i = 0; i < PyList_Size(inputs.get()); ++i) {
    PyObject* input = PyList_GET_ITEM(inputs.get(), i);
    named_argument(utf8(PyTuple_GET_ITEM(input, 0)), PyTuple_GET_ITEM(input, 1),
                   PyLong_AsLong(PyTuple_GET_ITEM(input, 2)), nullptr);
  }
  sink_.end_list();
}

// The arguments of a function on numbers have the names of its parameters.
void NodeEncoder::symbolic_inputs(const Operator& function, PyObject* args, PyObject* kwargs) {
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

void NodeEncoder::schema_inputs(const Operator& function, PyObject* args, PyObject* kwargs) {
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

// The positional arguments of a target without a schema have no names.
void NodeEncoder::other_inputs(PyObject* args, PyObject* kwargs) {
  for (Py_ssize_t i = 0; i < PyTuple_GET_SIZE(args); ++i) {
    named_argument("", PyTuple_GET_ITEM(args, i), kPositional, nullptr);
  }
  if (PyDict_GET_SIZE(kwargs) == 0) return;
  const Ref items = pairs_of(kwargs);
  for (Py_ssize_t i = 0; i < PyList_GET_SIZE(items.get()); ++i) {
    PyObject* item = PyList_GET_ITEM(items.get(), i);
    named_argument(utf8(PyTuple_GET_ITEM(item, 0)), PyTuple_GET_ITEM(item, 1), kKeyword, nullptr);
  }
}

void NodeEncoder::outputs(const NodeEntry& entry) {
  const GraphValues& values = names_.values();
  sink_.begin_list();
  for (const Output& output : values.outputs_of(entry)) {
    if (output.kind == Output::Kind::kNone) {
      out_.choice(Field::Argument_as_none, [&] { sink_.boolean(true); });
    } else if (output.kind == Output::Kind::kValue) {
      const NamedValue& value = values.values[output.first];
      arguments_.value_reference(value.table, value.name.get());
    } else {
      out_.choice(Field::Argument_as_tensors, [&] {
        sink_.begin_list();
        for (uint32_t k = 0; k < output.count; ++k) {
          out_.name_record(Type::TensorArgument, Field::TensorArgument_name,
                           values.values[output.first + k].name.get());
        }
        sink_.end_list();
      });
    }
  }
  sink_.end_list();
}

}  // namespace fxpress::serde
