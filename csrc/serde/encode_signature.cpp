#include "fx/symbols.h"
#include "py/calls.h"
#include "serde/graph_encoder.h"
#include "serde/symbols.h"

namespace fxpress::serde {

namespace {

// Returns a spec's argument; AssertionError if the argument does not have the type `type`.
Ref argument_of(PyObject* spec, SpecArgument type) {
  Ref argument = get_attr(spec, fx::names.arg);
  PyObject* wanted = python_type(type);
  if (wanted != nullptr && !is_a(argument.get(), wanted)) {
    raise(PyExc_AssertionError, "expected %s, got %S", as_type(wanted)->tp_name,
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

void GraphEncoder::graph_signature(PyObject* signature) {
  out_.record(Type::GraphSignature, [&](Field field) {
    const bool inputs = field == Field::GraphSignature_input_specs;
    const Ref specs = list_of(signature, inputs ? fx::names.input_specs : fx::names.output_specs);
    out_.list(specs.get(), [&](PyObject* spec) { inputs ? input_spec(spec) : output_spec(spec); });
  });
}

// Writes a TensorArgument or TokenArgument.
void GraphEncoder::named(Type type, PyObject* argument) {
  const Ref name = names_.name_of(argument);
  out_.record(type, [&](Field) { out_.string(name.get()); });
}

void GraphEncoder::constant_input(PyObject* argument) {
  const Ref held = get_attr(argument, fx::names.value);
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

void GraphEncoder::input_spec(PyObject* object) {
  const SpecInfo& info = spec_info(object, Type::InputSpec);
  if (info.tag == Field::InputSpec_user_input) {
    const Ref argument = get_attr(object, fx::names.arg);
    if (is_a(argument.get(), symbols.constant_argument_type)) return constant_input(argument.get());
  }
  if (info.tag == Field::InputSpec_buffer &&
      get_attr(object, fx::names.persistent).get() == Py_None) {
    raise(PyExc_AssertionError, "spec.persistent should not be None for BUFFER");
  }
  spec(info, object);
}

void GraphEncoder::output_spec(PyObject* object) {
  spec(spec_info(object, Type::OutputSpec), object);
}

void GraphEncoder::spec(const SpecInfo& info, PyObject* object) {
  const Ref target = info.has_target() ? target_of(object) : Ref();
  const Ref argument = argument_of(object, info.argument_type);
  out_.choice(info.tag, [&] {
    out_.record(Schema::owner(info.argument), [&](Field field) {
      if (target && field == info.target) return out_.string(target.get());
      if (field != info.argument) {  // the field InputToBufferSpec_persistent
        return sink_.boolean(get_attr(object, fx::names.persistent).get() == Py_True);
      }
      switch (info.argument_type) {
        case SpecArgument::kTensor:
          return named(Type::TensorArgument, argument.get());
        case SpecArgument::kToken:
          return named(Type::TokenArgument, argument.get());
        case SpecArgument::kObject:
          return custom_object(argument.get());
        default:
          return argument_spec(argument.get());
      }
    });
  });
}

void GraphEncoder::argument_spec(PyObject* spec) {
  const auto by_name = [&](Table table) { value_reference(table, names_.name_of(spec).get()); };
  if (is_a(spec, symbols.tensor_argument_type)) return by_name(Table::kTensor);
  if (is_a(spec, symbols.sym_int_argument_type)) return by_name(Table::kSymInt);
  if (is_a(spec, symbols.sym_float_argument_type)) return by_name(Table::kSymFloat);
  if (is_a(spec, symbols.sym_bool_argument_type)) return by_name(Table::kSymBool);
  if (is_a(spec, symbols.constant_argument_type)) {
    return argument(get_attr(spec, fx::names.value).get(), nullptr);
  }
  if (is_a(spec, symbols.custom_obj_argument_type)) {
    return out_.choice(Field::Argument_as_custom_obj, [&] { custom_object(spec); });
  }
  raise(PyExc_AssertionError,
        "an argument of a signature has a type that files cannot represent: %R", spec);
}

void GraphEncoder::module_calls(PyObject* entries) {
  const Ref held = Ref::steal(PySequence_Tuple(entries));
  out_.list(held.get(), [&](PyObject* entry) { module_call(entry); });
}

void GraphEncoder::module_call(PyObject* entry) {
  out_.record(Type::ModuleCallEntry, [&](Field field) {
    if (field == Field::ModuleCallEntry_fqn)
      return out_.string(get_attr(entry, fx::names.fqn).get());
    const Ref signature = get_attr(entry, fx::names.signature);
    if (signature.get() == Py_None) return sink_.null();
    call_signature(signature.get());
  });
}

void GraphEncoder::call_signature(PyObject* signature) {
  const auto specs = [&](PyObject* name) {
    const Ref list = list_of(signature, name);
    out_.list(list.get(), [&](PyObject* spec) { argument_spec(spec); });
  };
  const auto treespec = [&](PyObject* name) {
    const Ref spec = get_attr(signature, name);
    out_.string(call(context_.treespec, spec).get());
  };
  out_.record(Type::ModuleCallSignature, [&](Field field) {
    switch (field) {
      case Field::ModuleCallSignature_inputs:
        return specs(fx::names.inputs);
      case Field::ModuleCallSignature_outputs:
        return specs(fx::names.outputs);
      case Field::ModuleCallSignature_in_spec:
        return treespec(fx::names.in_spec);
      case Field::ModuleCallSignature_out_spec:
        return treespec(fx::names.out_spec);
      default:
        break;
    }
    const Ref arg_names = get_attr(signature, fx::names.forward_arg_names);
    if (!is_true(arg_names.get())) return sink_.null();
    out_.strings(arg_names.get());
  });
}

}  // namespace fxpress::serde
