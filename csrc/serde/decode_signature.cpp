#include "serde/decode_signature.h"

#include "fx/symbols.h"
#include "py/containers.h"
#include "serde/kinds.h"
#include "serde/scalars.h"
#include "serde/symbols.h"

namespace fxpress::serde {

namespace {

template <class... Args>
Ref call(PyObject* callable, Args... args) {
  PyObject* arguments[] = {args...};
  return Ref::steal(PyObject_Vectorcall(callable, arguments, sizeof...(args), nullptr));
}

}  // namespace

SignatureDecoder::SignatureDecoder(Decoding& file, ArgumentDecoder& arguments, ValueDecoder& values)
    : file_(file),
      arguments_(arguments),
      values_(values),
      input_kinds_(by_number(symbols.input_kinds)),
      output_kinds_(by_number(symbols.output_kinds)) {}

Ref SignatureDecoder::signature(const Value& value) {
  const auto list = [&](Field name, auto&& make) {
    const auto specs = file_.children(file_.field(value, name));
    Ref result = Ref::steal(PyList_New(static_cast<Py_ssize_t>(specs.size())));
    for (size_t i = 0; i < specs.size(); ++i) {
      PyList_SET_ITEM(result.get(), static_cast<Py_ssize_t>(i), make(specs[i]).release());
    }
    return result;
  };
  const Ref inputs =
      list(Field::GraphSignature_input_specs, [&](const Value& spec) { return input_spec(spec); });
  const Ref outputs = list(Field::GraphSignature_output_specs,
                           [&](const Value& spec) { return output_spec(spec); });
  return call(symbols.graph_signature_type, inputs.get(), outputs.get());
}

// The spec of an argument that has only a name. Signatures have as many as the state has tensors:
// the constructors, which are Python code, are left out.
Ref SignatureDecoder::named_spec(PyObject* type, const Value& argument) {
  const auto name = file_.name_in(argument);
  if (!name) raise(symbols.serialize_error, "an argument of the signature has no name");
  return new_instance(type, {{fx::names.name, new_text(*name).get()}});
}

Ref SignatureDecoder::argument_spec(const Value& argument) {
  switch (file_.tag(argument)) {
    case Field::Argument_as_tensor:
      return named_spec(symbols.tensor_argument_type, argument);
    case Field::Argument_as_sym_int:
      return named_spec(symbols.sym_int_argument_type, argument);
    case Field::Argument_as_sym_float:
      return named_spec(symbols.sym_float_argument_type, argument);
    case Field::Argument_as_sym_bool:
      return named_spec(symbols.sym_bool_argument_type, argument);
    case Field::Argument_as_custom_obj:
      return call(
          symbols.constant_argument_type,
          new_text(file_.text(file_.content(argument), Field::CustomObjArgument_name)).get(),
          arguments_.object(file_.content(argument)).get());
    default:
      return call(symbols.constant_argument_type, new_text("").get(),
                  arguments_.argument(argument).get());
  }
}

Ref SignatureDecoder::input_spec(const Value& spec) {
  const Value& content = file_.content(spec);
  const auto make = [&](InputKind kind, const Ref& argument, PyObject* target,
                        PyObject* persistent = Py_None) {
    PyObject* object = input_kinds_[static_cast<size_t>(kind)].get();
    if (kind == InputKind::kBuffer) {  // the constructor looks at `persistent`
      return call(symbols.input_spec_type, object, argument.get(), target, persistent);
    }
    return new_instance(symbols.input_spec_type, {{fx::names.kind, object},
                                                  {fx::names.arg, argument.get()},
                                                  {fx::names.target, target},
                                                  {fx::names.persistent, persistent}});
  };
  const auto target = [&](Field name) { return file_.scalar(file_.field(content, name)); };
  switch (file_.tag(spec)) {
    case Field::InputSpec_user_input:
      return make(InputKind::kUserInput,
                  argument_spec(file_.field(content, Field::UserInputSpec_arg)), Py_None);
    case Field::InputSpec_parameter:
      return make(InputKind::kParameter,
                  named_spec(symbols.tensor_argument_type,
                             file_.field(content, Field::InputToParameterSpec_arg)),
                  target(Field::InputToParameterSpec_parameter_name).get());
    case Field::InputSpec_buffer:
      return make(InputKind::kBuffer,
                  named_spec(symbols.tensor_argument_type,
                             file_.field(content, Field::InputToBufferSpec_arg)),
                  target(Field::InputToBufferSpec_buffer_name).get(),
                  target(Field::InputToBufferSpec_persistent).get());
    case Field::InputSpec_tensor_constant:
      return make(InputKind::kConstantTensor,
                  named_spec(symbols.tensor_argument_type,
                             file_.field(content, Field::InputToTensorConstantSpec_arg)),
                  target(Field::InputToTensorConstantSpec_tensor_constant_name).get());
    case Field::InputSpec_custom_obj:
      return make(InputKind::kCustomObject,
                  values_.custom_object(file_.field(content, Field::InputToCustomObjSpec_arg)),
                  target(Field::InputToCustomObjSpec_custom_obj_name).get());
    case Field::InputSpec_token:
      return make(
          InputKind::kToken,
          named_spec(symbols.token_argument_type, file_.field(content, Field::InputTokenSpec_arg)),
          Py_None);
    case Field::InputSpec_constant_input: {
      const Value& constant = file_.field(content, Field::InputToConstantInputSpec_value);
      const bool none = file_.tag(constant) == Field::ConstantValue_as_none;
      const Ref value = none ? Ref::borrow(Py_None) : file_.scalar(file_.content(constant));
      return make(InputKind::kUserInput,
                  call(symbols.constant_argument_type,
                       target(Field::InputToConstantInputSpec_name).get(), value.get()),
                  Py_None);
    }
    default:
      raise(symbols.unsupported_error, "fxpress does not know this kind of input: %s",
            file_.document->schema().type(spec.type).fields[spec.count].name.c_str());
  }
}

Ref SignatureDecoder::output_spec(const Value& spec) {
  const Value& content = file_.content(spec);
  const auto make = [&](OutputKind kind, const Ref& argument, PyObject* target = Py_None) {
    return call(symbols.output_spec_type, output_kinds_[static_cast<size_t>(kind)].get(),
                argument.get(), target);
  };
  const auto with_target = [&](OutputKind kind, Field argument, Field target) {
    return make(kind, named_spec(symbols.tensor_argument_type, file_.field(content, argument)),
                file_.scalar(file_.field(content, target)).get());
  };
  switch (file_.tag(spec)) {
    case Field::OutputSpec_user_output:
      return make(OutputKind::kUserOutput,
                  argument_spec(file_.field(content, Field::UserOutputSpec_arg)));
    case Field::OutputSpec_loss_output:
      return make(OutputKind::kLossOutput,
                  named_spec(symbols.tensor_argument_type,
                             file_.field(content, Field::LossOutputSpec_arg)));
    case Field::OutputSpec_buffer_mutation:
      return with_target(OutputKind::kBufferMutation, Field::BufferMutationSpec_arg,
                         Field::BufferMutationSpec_buffer_name);
    case Field::OutputSpec_parameter_mutation:
      return with_target(OutputKind::kParameterMutation, Field::ParameterMutationSpec_arg,
                         Field::ParameterMutationSpec_parameter_name);
    case Field::OutputSpec_gradient_to_parameter:
      return with_target(OutputKind::kGradientToParameter, Field::GradientToParameterSpec_arg,
                         Field::GradientToParameterSpec_parameter_name);
    case Field::OutputSpec_gradient_to_user_input:
      return with_target(OutputKind::kGradientToUserInput, Field::GradientToUserInputSpec_arg,
                         Field::GradientToUserInputSpec_user_input_name);
    case Field::OutputSpec_user_input_mutation:
      return with_target(OutputKind::kUserInputMutation, Field::UserInputMutationSpec_arg,
                         Field::UserInputMutationSpec_user_input_name);
    case Field::OutputSpec_token:
      return make(OutputKind::kToken, named_spec(symbols.token_argument_type,
                                                 file_.field(content, Field::OutputTokenSpec_arg)));
    default:
      raise(symbols.unsupported_error, "fxpress does not know this kind of output: %s",
            file_.document->schema().type(spec.type).fields[spec.count].name.c_str());
  }
}

Ref SignatureDecoder::argument_specs(const Value& list) {
  Ref result = Ref::steal(PyList_New(0));
  for (const Value& argument : file_.children(list)) {
    check(PyList_Append(result.get(), argument_spec(argument).get()));
  }
  return result;
}

Ref SignatureDecoder::calls(const Value& list) {
  const auto entries = file_.children(list);
  Ref result = Ref::steal(PyList_New(static_cast<Py_ssize_t>(entries.size())));
  for (size_t i = 0; i < entries.size(); ++i) {
    const Ref fqn = new_text(file_.text(entries[i], Field::ModuleCallEntry_fqn));
    const Value& stored = file_.field(entries[i], Field::ModuleCallEntry_signature);
    const Ref signature =
        stored.kind == ValueKind::kNull ? Ref::borrow(Py_None) : call_signature(stored);
    PyList_SET_ITEM(result.get(), static_cast<Py_ssize_t>(i),
                    new_instance(symbols.module_call_entry_type,
                                 {{names.fqn, fqn.get()}, {names.signature, signature.get()}})
                        .release());
  }
  return result;
}

Ref SignatureDecoder::call_signature(const Value& value) {
  const auto spec = [&](Field name, PyObject* read) {
    const Ref source = new_text(file_.text(value, name));
    return Ref::steal(PyObject_CallMethodOneArg(file_.context.values, read, source.get()));
  };
  const Ref inputs = argument_specs(file_.field(value, Field::ModuleCallSignature_inputs));
  const Ref outputs = argument_specs(file_.field(value, Field::ModuleCallSignature_outputs));
  const Ref in_spec = spec(Field::ModuleCallSignature_in_spec, names.input_treespec);
  const Ref out_spec = spec(Field::ModuleCallSignature_out_spec, names.treespec);
  const Value& stored = file_.field(value, Field::ModuleCallSignature_forward_arg_names);
  Ref arg_names = Ref::borrow(Py_None);
  if (stored.kind == ValueKind::kList && stored.count > 0) {
    arg_names = Ref::steal(PyList_New(0));
    for (const Value& name : file_.children(stored)) {
      check(PyList_Append(arg_names.get(), new_text(file_.text(name)).get()));
    }
  }
  return call(symbols.module_call_signature_type, inputs.get(), outputs.get(), in_spec.get(),
              out_spec.get(), arg_names.get());
}

}  // namespace fxpress::serde
