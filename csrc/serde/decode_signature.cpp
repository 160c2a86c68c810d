#include "fx/symbols.h"
#include "py/calls.h"
#include "py/containers.h"
#include "serde/graph_decoder.h"
#include "serde/symbols.h"

namespace fxpress::serde {

Ref GraphDecoder::graph_signature(const Value& value) {
  const auto list = [&](Field name, auto&& make) {
    const auto specs = children_of(value, name);
    return make_list(specs.size(), [&](size_t i) { return make(specs[i]); });
  };
  const Ref inputs =
      list(Field::GraphSignature_input_specs, [&](const Value& spec) { return input_spec(spec); });
  const Ref outputs = list(Field::GraphSignature_output_specs,
                           [&](const Value& spec) { return output_spec(spec); });
  return call(symbols.graph_signature_type, inputs, outputs);
}

// Creates an argument that has only a name, such as a TensorArgument. Does not call its
// constructor: this is faster, and a signature has an argument for each parameter and buffer.
Ref GraphDecoder::named_spec(PyObject* type, const Value& argument) {
  const auto name = name_in(argument);
  if (!name) raise(symbols.serialize_error, "an argument of the signature does not have a name");
  return new_instance(type, {{fx::names.name, new_text(*name).get()}});
}

Ref GraphDecoder::argument_spec(const Value& value) {
  switch (tag_of(value)) {
    case Field::Argument_as_tensor:
      return named_spec(symbols.tensor_argument_type, value);
    case Field::Argument_as_sym_int:
      return named_spec(symbols.sym_int_argument_type, value);
    case Field::Argument_as_sym_float:
      return named_spec(symbols.sym_float_argument_type, value);
    case Field::Argument_as_sym_bool:
      return named_spec(symbols.sym_bool_argument_type, value);
    case Field::Argument_as_custom_obj:
      return call(symbols.constant_argument_type,
                  new_text(text_of(content_of(value), Field::CustomObjArgument_name)).get(),
                  object(content_of(value)).get());
    default:
      return call(symbols.constant_argument_type, new_text(""), argument(value));
  }
}

// Returns the row of kSpecs for a spec, and the member of torch's InputKind or OutputKind. Constant
// inputs do not have an InputKind in torch, so they get USER_INPUT, the member of the first row.
std::pair<const SpecInfo&, PyObject*> GraphDecoder::spec_info(const Value& spec, const char* what) {
  const SpecInfo* info = schema::find_spec(tag_of(spec));
  if (info == nullptr) {
    raise(symbols.unsupported_error, "fxpress does not support this type of %s spec: %s", what,
          document_->schema().type(spec.type).fields[spec.count].name.c_str());
  }
  const bool is_literal = info->argument_type == SpecArgument::kLiteral;
  const size_t row = is_literal ? 0 : static_cast<size_t>(info - schema::kSpecs);
  return {*info, spec_kinds_[row].get()};
}

Ref GraphDecoder::spec_argument(const SpecInfo& info, const Value& record) {
  const Value& stored = field(record, info.argument);
  switch (info.argument_type) {
    case SpecArgument::kAny:
      return argument_spec(stored);
    case SpecArgument::kObject:
      return custom_object(stored);
    case SpecArgument::kLiteral: {
      const bool is_none = tag_of(stored) == Field::ConstantValue_as_none;
      const Ref value = is_none ? Ref::borrow(Py_None) : scalar_of(content_of(stored));
      return call(symbols.constant_argument_type, scalar_of(field(record, info.target)), value);
    }
    default:
      return named_spec(python_type(info.argument_type), stored);
  }
}

Ref GraphDecoder::spec_target(const SpecInfo& info, const Value& record) const {
  return info.has_target() ? scalar_of(field(record, info.target)) : Ref::borrow(Py_None);
}

Ref GraphDecoder::input_spec(const Value& spec) {
  const auto [info, kind] = spec_info(spec, "input");
  const Value& record = content_of(spec);
  const Ref argument = spec_argument(info, record);
  const Ref target = spec_target(info, record);
  if (info.tag == Field::InputSpec_buffer) {  // call InputSpec, which checks `persistent`
    const Ref persistent = scalar_of(field(record, Field::InputToBufferSpec_persistent));
    return call(symbols.input_spec_type, kind, argument, target, persistent);
  }
  return new_instance(symbols.input_spec_type, {{fx::names.kind, kind},
                                                {fx::names.arg, argument.get()},
                                                {fx::names.target, target.get()},
                                                {fx::names.persistent, Py_None}});
}

Ref GraphDecoder::output_spec(const Value& spec) {
  const auto [info, kind] = spec_info(spec, "output");
  const Value& record = content_of(spec);
  const Ref argument = spec_argument(info, record);
  return call(symbols.output_spec_type, kind, argument, spec_target(info, record));
}

Ref GraphDecoder::argument_specs(const Value& list) {
  const auto arguments = children_of(list);
  return make_list(arguments.size(), [&](size_t i) { return argument_spec(arguments[i]); });
}

Ref GraphDecoder::calls(const Value& list) {
  const auto entries = children_of(list);
  return make_list(entries.size(), [&](size_t i) {
    const Ref fqn = new_text(text_of(entries[i], Field::ModuleCallEntry_fqn));
    const Value& stored = field(entries[i], Field::ModuleCallEntry_signature);
    const Ref signature =
        stored.kind == ValueKind::kNull ? Ref::borrow(Py_None) : call_signature(stored);
    return new_instance(symbols.module_call_entry_type,
                        {{fx::names.fqn, fqn.get()}, {fx::names.signature, signature.get()}});
  });
}

Ref GraphDecoder::call_signature(const Value& value) {
  const auto spec = [&](Field name, PyObject* read) {
    return call_method(values_.ptr(), read, new_text(text_of(value, name)));
  };
  const Ref inputs = argument_specs(field(value, Field::ModuleCallSignature_inputs));
  const Ref outputs = argument_specs(field(value, Field::ModuleCallSignature_outputs));
  const Ref in_spec = spec(Field::ModuleCallSignature_in_spec, fx::names.input_treespec);
  const Ref out_spec = spec(Field::ModuleCallSignature_out_spec, fx::names.treespec);
  const Value& stored = field(value, Field::ModuleCallSignature_forward_arg_names);
  Ref arg_names = Ref::borrow(Py_None);
  if (stored.kind == ValueKind::kList && stored.count > 0) {
    const auto stored_names = children_of(stored);
    arg_names = make_list(stored_names.size(),
                          [&](size_t i) { return new_text(text_of(stored_names[i])); });
  }
  return call(symbols.module_call_signature_type, inputs, outputs, in_spec, out_spec, arg_names);
}

}  // namespace fxpress::serde
