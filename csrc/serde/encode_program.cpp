#include "fx/symbols.h"
#include "serde/encoder.h"
#include "serde/errors.h"
#include "serde/kinds.h"
#include "serde/symbols.h"
#include "serde/text.h"

namespace fxpress::fx::serde {

namespace {

// A spec's argument, which must be of this type.
Ref argument_of(PyObject* spec, PyObject* type) {
  Ref argument = get_attr(spec, fx::names.arg);
  if (!is_a(argument.get(), type)) {
    raise(PyExc_AssertionError, "expected %s, got %S", as_type(type)->tp_name,
          Py_TYPE(argument.get()));
  }
  return argument;
}

Ref target_of(PyObject* spec) {
  Ref target = get_attr(spec, fx::names.target);
  if (target.get() == Py_None) {
    raise(PyExc_AssertionError, "spec.target should not be None: %R", spec);
  }
  return target;
}

Ref list_of(PyObject* object, PyObject* name) {
  return Ref::steal(PySequence_Tuple(get_attr(object, name).get()));
}

// A fact by its name: borrowed.
PyObject* fact(PyObject* facts, const char* name) {
  PyObject* value = PyDict_GetItemString(facts, name);
  if (value == nullptr) raise(PyExc_KeyError, "%s", name);
  return value;
}

}  // namespace

void Encoder::strings(PyObject* list) {
  const Ref held = Ref::steal(PySequence_Tuple(list));
  sink_.begin_list();
  for (Py_ssize_t i = 0; i < PySequence_Fast_GET_SIZE(held.get()); ++i) {
    string(PySequence_Fast_GET_ITEM(held.get(), i));
  }
  sink_.end_list();
}

void Encoder::string_map(PyObject* dict) {
  sink_.begin_map();
  PyObject* key = nullptr;
  PyObject* value = nullptr;
  for (Py_ssize_t at = 0; PyDict_Next(dict, &at, &key, &value) != 0;) {
    sink_.key(Text(key).view());
    string(value);
  }
  sink_.end_map();
}

void Encoder::program(PyObject* module, PyObject* signature, PyObject* calls, PyObject* facts) {
  if (!schema_.difference().empty()) {
    raise(symbols.unsupported_error,
          "the schema of this torch differs in %s, which fxpress cannot write",
          schema_.difference().c_str());
  }
  PyObject* key = nullptr;
  PyObject* value = nullptr;
  Py_ssize_t at = 0;
  record(Type::ExportedProgram, [&](Field field) {
    switch (field) {
      case Field::ExportedProgram_graph_module:
        return graph_module(module, signature, calls, facts);
      case Field::ExportedProgram_opset_version:
        sink_.begin_map();
        at = 0;
        while (PyDict_Next(fact(facts, "opset_version"), &at, &key, &value) != 0) {
          sink_.key(Text(key).view());
          if (PyBool_Check(value)) {
            sink_.boolean(value == Py_True);
          } else if (PyFloat_Check(value)) {
            sink_.real(PyFloat_AS_DOUBLE(value));
          } else {
            integer(value);
          }
        }
        return sink_.end_map();
      case Field::ExportedProgram_range_constraints:
        sink_.begin_map();
        at = 0;
        while (PyDict_Next(fact(facts, "range_constraints"), &at, &key, &value) != 0) {
          sink_.key(Text(key).view());
          record(Type::RangeConstraint, [&](Field bound) {
            const bool lower = bound == Field::RangeConstraint_min_val;
            PyObject* limit = PyTuple_GET_ITEM(value, lower ? 0 : 1);
            if (limit == Py_None) return sink_.null();
            integer(limit);
          });
        }
        return sink_.end_map();
      case Field::ExportedProgram_schema_version:
        return record(Type::SchemaVersion, [&](Field part) {
          const bool major = part == Field::SchemaVersion_major;
          integer(PyTuple_GET_ITEM(fact(facts, "schema_version"), major ? 0 : 1));
        });
      case Field::ExportedProgram_verifiers:
        return strings(fact(facts, "verifiers"));
      case Field::ExportedProgram_torch_version:
        return string(fact(facts, "torch_version"));
      default:
        return strings(fact(facts, "guards_code"));
    }
  });
  if (context_.check == nullptr) return;
  for (Py_ssize_t i = 0; i < PyList_GET_SIZE(context_.check->graph_modules); ++i) {
    if (!visited_.contains(PyList_GET_ITEM(context_.check->graph_modules, i))) throw Doubtful();
  }
}

void Encoder::graph_module(PyObject* module, PyObject* signature, PyObject* calls,
                           PyObject* facts) {
  record(Type::GraphModule, [&](Field field) {
    switch (field) {
      case Field::GraphModule_graph:
        return graph(module);
      case Field::GraphModule_signature:
        return this->signature(signature);
      case Field::GraphModule_module_call_graph: {
        const Ref list = Ref::steal(PySequence_Tuple(calls));
        sink_.begin_list();
        for (Py_ssize_t i = 0; i < PySequence_Fast_GET_SIZE(list.get()); ++i) {
          call_entry(PySequence_Fast_GET_ITEM(list.get(), i));
        }
        return sink_.end_list();
      }
      case Field::GraphModule_metadata:
        return string_map(fact(facts, "metadata"));
      default:
        break;
    }
    sink_.begin_map();
    PyObject* key = nullptr;
    PyObject* value = nullptr;
    Py_ssize_t at = 0;
    while (PyDict_Next(fact(facts, "namedtuple_fields"), &at, &key, &value) != 0) {
      sink_.key(Text(key).view());
      record(Type::NamedTupleDef, [&](Field) { strings(value); });
    }
    sink_.end_map();
  });
}

void Encoder::signature(PyObject* signature) {
  record(Type::GraphSignature, [&](Field field) {
    const bool inputs = field == Field::GraphSignature_input_specs;
    const Ref specs = list_of(signature, inputs ? names.input_specs : names.output_specs);
    sink_.begin_list();
    for (Py_ssize_t i = 0; i < PySequence_Fast_GET_SIZE(specs.get()); ++i) {
      PyObject* spec = PySequence_Fast_GET_ITEM(specs.get(), i);
      inputs ? input_spec(spec) : output_spec(spec);
    }
    sink_.end_list();
  });
}

// The name of a value in a signature, as the graph in the file has it.
Ref Encoder::name_of(PyObject* argument) {
  Ref name = get_attr(argument, fx::names.name);
  if (merged_.empty() || !PyUnicode_Check(name.get())) return name;
  const auto merged = merged_.find(std::string(Text(name.get()).view()));
  return merged == merged_.end() ? std::move(name) : Ref::borrow(merged->second.get());
}

// A TensorArgument or TokenArgument.
void Encoder::named(Type type, PyObject* argument) {
  const Ref name = name_of(argument);
  record(type, [&](Field) { string(name.get()); });
}

void Encoder::constant_input(PyObject* argument) {
  const Ref held = get_attr(argument, names.value);
  PyObject* value = held.get();
  choice(Field::InputSpec_constant_input, [&] {
    record(Type::InputToConstantInputSpec, [&](Field field) {
      if (field == Field::InputToConstantInputSpec_name) {
        return string(get_attr(argument, fx::names.name).get());
      }
      PyTypeObject* kind = Py_TYPE(value);
      if (kind == &PyLong_Type) {
        return choice(Field::ConstantValue_as_int, [&] { integer(value); });
      }
      if (kind == &PyBool_Type) {
        return choice(Field::ConstantValue_as_bool, [&] { sink_.boolean(value == Py_True); });
      }
      if (kind == &PyUnicode_Type) {
        return choice(Field::ConstantValue_as_string, [&] { string(value); });
      }
      if (kind == &PyFloat_Type) {
        return choice(Field::ConstantValue_as_float, [&] { sink_.real(PyFloat_AS_DOUBLE(value)); });
      }
      if (value == Py_None) {
        return choice(Field::ConstantValue_as_none, [&] { sink_.boolean(true); });
      }
      raise(symbols.serialize_error, "Unhandled constant input %R to serialize", value);
    });
  });
}

void Encoder::input_spec(PyObject* spec) {
  const auto with_target = [&](Field kind, Type type, Type argument_type, PyObject* python_type) {
    const Ref target = target_of(spec);
    const Ref argument = argument_of(spec, python_type);
    choice(kind, [&] {
      record(type, [&](Field field) {
        switch (field) {
          case Field::InputToParameterSpec_arg:
          case Field::InputToBufferSpec_arg:
          case Field::InputToTensorConstantSpec_arg:
            return named(argument_type, argument.get());
          case Field::InputToCustomObjSpec_arg:
            return record(argument_type, [&](Field part) {
              const bool is_name = part == Field::CustomObjArgument_name;
              string(get_attr(argument.get(), is_name ? fx::names.name : names.class_fqn).get());
            });
          case Field::InputToBufferSpec_persistent:
            return sink_.boolean(get_attr(spec, fx::names.persistent).get() == Py_True);
          default:
            return string(target.get());
        }
      });
    });
  };
  switch (input_kind(spec)) {
    case InputKind::kUserInput: {
      const Ref argument = get_attr(spec, fx::names.arg);
      if (is_a(argument.get(), symbols.constant_argument_type)) {
        return constant_input(argument.get());
      }
      return choice(Field::InputSpec_user_input, [&] {
        record(Type::UserInputSpec, [&](Field) { argument_spec(argument.get()); });
      });
    }
    case InputKind::kParameter:
      return with_target(Field::InputSpec_parameter, Type::InputToParameterSpec,
                         Type::TensorArgument, symbols.tensor_argument_type);
    case InputKind::kBuffer:
      if (get_attr(spec, fx::names.persistent).get() == Py_None) {
        raise(PyExc_AssertionError, "spec.persistent should not be None for BUFFER");
      }
      return with_target(Field::InputSpec_buffer, Type::InputToBufferSpec, Type::TensorArgument,
                         symbols.tensor_argument_type);
    case InputKind::kConstantTensor:
      return with_target(Field::InputSpec_tensor_constant, Type::InputToTensorConstantSpec,
                         Type::TensorArgument, symbols.tensor_argument_type);
    case InputKind::kCustomObject:
      return with_target(Field::InputSpec_custom_obj, Type::InputToCustomObjSpec,
                         Type::CustomObjArgument, symbols.custom_obj_argument_type);
    case InputKind::kToken: {
      const Ref argument = argument_of(spec, symbols.token_argument_type);
      return choice(Field::InputSpec_token, [&] {
        record(Type::InputTokenSpec, [&](Field) { named(Type::TokenArgument, argument.get()); });
      });
    }
  }
}

void Encoder::output_spec(PyObject* spec) {
  const auto with_target = [&](Field kind, Type type) {
    const Ref target = target_of(spec);
    const Ref argument = argument_of(spec, symbols.tensor_argument_type);
    choice(kind, [&] {
      record(type, [&](Field field) {
        switch (field) {
          case Field::BufferMutationSpec_arg:
          case Field::ParameterMutationSpec_arg:
          case Field::GradientToParameterSpec_arg:
          case Field::GradientToUserInputSpec_arg:
          case Field::UserInputMutationSpec_arg:
            return named(Type::TensorArgument, argument.get());
          default:
            return string(target.get());
        }
      });
    });
  };
  switch (output_kind(spec)) {
    case OutputKind::kUserOutput:
      return choice(Field::OutputSpec_user_output, [&] {
        record(Type::UserOutputSpec,
               [&](Field) { argument_spec(get_attr(spec, fx::names.arg).get()); });
      });
    case OutputKind::kLossOutput: {
      const Ref argument = argument_of(spec, symbols.tensor_argument_type);
      return choice(Field::OutputSpec_loss_output, [&] {
        record(Type::LossOutputSpec, [&](Field) { named(Type::TensorArgument, argument.get()); });
      });
    }
    case OutputKind::kBufferMutation:
      return with_target(Field::OutputSpec_buffer_mutation, Type::BufferMutationSpec);
    case OutputKind::kParameterMutation:
      return with_target(Field::OutputSpec_parameter_mutation, Type::ParameterMutationSpec);
    case OutputKind::kGradientToParameter:
      return with_target(Field::OutputSpec_gradient_to_parameter, Type::GradientToParameterSpec);
    case OutputKind::kGradientToUserInput:
      return with_target(Field::OutputSpec_gradient_to_user_input, Type::GradientToUserInputSpec);
    case OutputKind::kUserInputMutation:
      return with_target(Field::OutputSpec_user_input_mutation, Type::UserInputMutationSpec);
    case OutputKind::kToken: {
      const Ref argument = argument_of(spec, symbols.token_argument_type);
      return choice(Field::OutputSpec_token, [&] {
        record(Type::OutputTokenSpec, [&](Field) { named(Type::TokenArgument, argument.get()); });
      });
    }
  }
}

void Encoder::argument_spec(PyObject* spec) {
  const auto by_name = [&](Table table) { value_reference(table, name_of(spec).get()); };
  if (is_a(spec, symbols.tensor_argument_type)) return by_name(Table::kTensor);
  if (is_a(spec, symbols.sym_int_argument_type)) return by_name(Table::kSymInt);
  if (is_a(spec, symbols.sym_float_argument_type)) return by_name(Table::kSymFloat);
  if (is_a(spec, symbols.sym_bool_argument_type)) return by_name(Table::kSymBool);
  if (is_a(spec, symbols.constant_argument_type)) {
    return argument(get_attr(spec, names.value).get(), nullptr);
  }
  if (is_a(spec, symbols.custom_obj_argument_type)) {
    return choice(Field::Argument_as_custom_obj, [&] {
      record(Type::CustomObjArgument, [&](Field field) {
        const bool is_name = field == Field::CustomObjArgument_name;
        string(get_attr(spec, is_name ? fx::names.name : names.class_fqn).get());
      });
    });
  }
  raise(PyExc_AssertionError,
        "an argument of a signature is of a type without a place in the "
        "file: %R",
        spec);
}

void Encoder::call_entry(PyObject* entry) {
  record(Type::ModuleCallEntry, [&](Field field) {
    if (field == Field::ModuleCallEntry_fqn) return string(get_attr(entry, names.fqn).get());
    const Ref signature = get_attr(entry, names.signature);
    if (signature.get() == Py_None) return sink_.null();
    call_signature(signature.get());
  });
}

void Encoder::call_signature(PyObject* signature) {
  const auto specs = [&](PyObject* name) {
    const Ref list = list_of(signature, name);
    sink_.begin_list();
    for (Py_ssize_t i = 0; i < PySequence_Fast_GET_SIZE(list.get()); ++i) {
      argument_spec(PySequence_Fast_GET_ITEM(list.get(), i));
    }
    sink_.end_list();
  };
  const auto treespec = [&](PyObject* name) {
    const Ref spec = get_attr(signature, name);
    string(Ref::steal(PyObject_CallOneArg(context_.treespec, spec.get())).get());
  };
  record(Type::ModuleCallSignature, [&](Field field) {
    switch (field) {
      case Field::ModuleCallSignature_inputs:
        return specs(names.inputs);
      case Field::ModuleCallSignature_outputs:
        return specs(names.outputs);
      case Field::ModuleCallSignature_in_spec:
        return treespec(names.in_spec);
      case Field::ModuleCallSignature_out_spec:
        return treespec(names.out_spec);
      default:
        break;
    }
    const Ref arg_names = get_attr(signature, names.forward_arg_names);
    const int given = PyObject_IsTrue(arg_names.get());
    check(given);
    if (given == 0) return sink_.null();
    strings(arg_names.get());
  });
}

}  // namespace fxpress::fx::serde
