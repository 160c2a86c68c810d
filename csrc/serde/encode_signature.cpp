#include "serde/encode_signature.h"

#include "fx/symbols.h"
#include "serde/kinds.h"
#include "serde/symbols.h"

namespace fxpress::serde {

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

}  // namespace

void SignatureEncoder::signature(PyObject* signature) {
  out_.record(Type::GraphSignature, [&](Field field) {
    const bool inputs = field == Field::GraphSignature_input_specs;
    const Ref specs = list_of(signature, inputs ? names.input_specs : names.output_specs);
    out_.list(specs.get(), [&](PyObject* spec) { inputs ? input_spec(spec) : output_spec(spec); });
  });
}

// A TensorArgument or TokenArgument.
void SignatureEncoder::named(Type type, PyObject* argument) {
  const Ref name = names_.name_of(argument);
  out_.record(type, [&](Field) { out_.string(name.get()); });
}

void SignatureEncoder::constant_input(PyObject* argument) {
  const Ref held = get_attr(argument, names.value);
  PyObject* value = held.get();
  out_.choice(Field::InputSpec_constant_input, [&] {
    out_.record(Type::InputToConstantInputSpec, [&](Field field) {
      if (field == Field::InputToConstantInputSpec_name) {
        return out_.string(get_attr(argument, fx::names.name).get());
      }
      PyTypeObject* kind = Py_TYPE(value);
      if (kind == &PyLong_Type) {
        return out_.choice(Field::ConstantValue_as_int, [&] { out_.integer(value); });
      }
      if (kind == &PyBool_Type) {
        return out_.choice(Field::ConstantValue_as_bool, [&] { sink_.boolean(value == Py_True); });
      }
      if (kind == &PyUnicode_Type) {
        return out_.choice(Field::ConstantValue_as_string, [&] { out_.string(value); });
      }
      if (kind == &PyFloat_Type) {
        return out_.choice(Field::ConstantValue_as_float,
                           [&] { sink_.real(PyFloat_AS_DOUBLE(value)); });
      }
      if (value == Py_None) {
        return out_.choice(Field::ConstantValue_as_none, [&] { sink_.boolean(true); });
      }
      raise(symbols.serialize_error, "Unhandled constant input %R to serialize", value);
    });
  });
}

void SignatureEncoder::input_spec(PyObject* spec) {
  const auto with_target = [&](Field kind, Type type, Type argument_type, PyObject* python_type) {
    const Ref target = target_of(spec);
    const Ref argument = argument_of(spec, python_type);
    out_.choice(kind, [&] {
      out_.record(type, [&](Field field) {
        switch (field) {
          case Field::InputToParameterSpec_arg:
          case Field::InputToBufferSpec_arg:
          case Field::InputToTensorConstantSpec_arg:
            return named(argument_type, argument.get());
          case Field::InputToCustomObjSpec_arg:
            return values_.custom_object(argument.get());
          case Field::InputToBufferSpec_persistent:
            return sink_.boolean(get_attr(spec, fx::names.persistent).get() == Py_True);
          default:
            return out_.string(target.get());
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
      return out_.choice(Field::InputSpec_user_input, [&] {
        out_.record(Type::UserInputSpec, [&](Field) { argument_spec(argument.get()); });
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
      return out_.choice(Field::InputSpec_token, [&] {
        out_.record(Type::InputTokenSpec,
                    [&](Field) { named(Type::TokenArgument, argument.get()); });
      });
    }
  }
}

void SignatureEncoder::output_spec(PyObject* spec) {
  const auto with_target = [&](Field kind, Type type) {
    const Ref target = target_of(spec);
    const Ref argument = argument_of(spec, symbols.tensor_argument_type);
    out_.choice(kind, [&] {
      out_.record(type, [&](Field field) {
        switch (field) {
          case Field::BufferMutationSpec_arg:
          case Field::ParameterMutationSpec_arg:
          case Field::GradientToParameterSpec_arg:
          case Field::GradientToUserInputSpec_arg:
          case Field::UserInputMutationSpec_arg:
            return named(Type::TensorArgument, argument.get());
          default:
            return out_.string(target.get());
        }
      });
    });
  };
  switch (output_kind(spec)) {
    case OutputKind::kUserOutput:
      return out_.choice(Field::OutputSpec_user_output, [&] {
        out_.record(Type::UserOutputSpec,
                    [&](Field) { argument_spec(get_attr(spec, fx::names.arg).get()); });
      });
    case OutputKind::kLossOutput: {
      const Ref argument = argument_of(spec, symbols.tensor_argument_type);
      return out_.choice(Field::OutputSpec_loss_output, [&] {
        out_.record(Type::LossOutputSpec,
                    [&](Field) { named(Type::TensorArgument, argument.get()); });
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
      return out_.choice(Field::OutputSpec_token, [&] {
        out_.record(Type::OutputTokenSpec,
                    [&](Field) { named(Type::TokenArgument, argument.get()); });
      });
    }
  }
}

void SignatureEncoder::argument_spec(PyObject* spec) {
  const auto by_name = [&](Table table) {
    arguments_.value_reference(table, names_.name_of(spec).get());
  };
  if (is_a(spec, symbols.tensor_argument_type)) return by_name(Table::kTensor);
  if (is_a(spec, symbols.sym_int_argument_type)) return by_name(Table::kSymInt);
  if (is_a(spec, symbols.sym_float_argument_type)) return by_name(Table::kSymFloat);
  if (is_a(spec, symbols.sym_bool_argument_type)) return by_name(Table::kSymBool);
  if (is_a(spec, symbols.constant_argument_type)) {
    return arguments_.argument(get_attr(spec, names.value).get(), nullptr);
  }
  if (is_a(spec, symbols.custom_obj_argument_type)) {
    return out_.choice(Field::Argument_as_custom_obj, [&] { values_.custom_object(spec); });
  }
  raise(PyExc_AssertionError,
        "an argument of a signature is of a type without a place in the "
        "file: %R",
        spec);
}

void SignatureEncoder::calls(PyObject* entries) {
  const Ref held = Ref::steal(PySequence_Tuple(entries));
  out_.list(held.get(), [&](PyObject* entry) { call(entry); });
}

void SignatureEncoder::call(PyObject* entry) {
  out_.record(Type::ModuleCallEntry, [&](Field field) {
    if (field == Field::ModuleCallEntry_fqn) return out_.string(get_attr(entry, names.fqn).get());
    const Ref signature = get_attr(entry, names.signature);
    if (signature.get() == Py_None) return sink_.null();
    call_signature(signature.get());
  });
}

void SignatureEncoder::call_signature(PyObject* signature) {
  const auto specs = [&](PyObject* name) {
    const Ref list = list_of(signature, name);
    out_.list(list.get(), [&](PyObject* spec) { argument_spec(spec); });
  };
  const auto treespec = [&](PyObject* name) {
    const Ref spec = get_attr(signature, name);
    out_.string(Ref::steal(PyObject_CallOneArg(treespec_, spec.get())).get());
  };
  out_.record(Type::ModuleCallSignature, [&](Field field) {
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
    out_.strings(arg_names.get());
  });
}

}  // namespace fxpress::serde
