#include "serde/check.h"

#include <algorithm>

#include "fx/arguments.h"
#include "fx/symbols.h"
#include "py/calls.h"
#include "serde/graph_values.h"
#include "serde/symbols.h"

namespace fxpress::serde {

namespace {

bool has_key(PyObject* dict, PyObject* key) {
  return PyDict_Check(dict) && dict_get(dict, key) != nullptr;
}

// Whether each name in the signature of a ModuleCallEntry is empty or the name of a node.
bool check_call(PyObject* entry, const GraphValues& graph) {
  const Ref signature = get_attr(entry, fx::names.signature);
  if (signature.get() == Py_None) return true;
  for (PyObject* role : {fx::names.inputs, fx::names.outputs}) {
    const Ref list = Ref::steal(PySequence_Tuple(get_attr(signature.get(), role).get()));
    for (PyObject* argument : items_of(list.get())) {
      const Ref name = get_attr(argument, fx::names.name);
      if (!PyUnicode_Check(name.get())) return false;
      if (PyUnicode_GET_LENGTH(name.get()) != 0 && !graph.has_node(name.get())) return false;
    }
  }
  return true;
}

// The names of the parameters, buffers and user inputs that mutations in output specs may target.
struct Targets {
  Ref parameters, buffers, user_inputs;  // sets of str
  Ref mutated;  // set of str: names of the new values in the mutations checked so far
};

bool check_input(PyObject* spec, PyObject* node_name, const ProgramCheck& program,
                 Targets& targets) {
  const SpecInfo& info = spec_info(spec, schema::Type::InputSpec);
  const Ref argument = get_attr(spec, fx::names.arg);
  const Ref target = get_attr(spec, fx::names.target);
  const bool has_name = is_a(argument.get(), symbols.tensor_argument_type) ||
                        is_a(argument.get(), symbols.sym_int_argument_type) ||
                        is_a(argument.get(), symbols.sym_float_argument_type) ||
                        is_a(argument.get(), symbols.sym_bool_argument_type);
  if (has_name && !is_equal(get_attr(argument.get(), fx::names.name).get(), node_name))
    return false;
  if (info.tag == schema::Field::InputSpec_user_input) {
    if (is_a(argument.get(), symbols.constant_argument_type)) return true;
    check(PySet_Add(targets.user_inputs.get(), node_name));
    return has_name || is_a(argument.get(), symbols.custom_obj_argument_type);
  }
  if (!is_a(argument.get(), python_type(info.argument_type))) return false;
  if (info.has_target() && target.get() == Py_None) return false;
  if (info.target_type == SpecTarget::kConstant) return has_key(program.constants, target.get());
  if (info.tag == schema::Field::InputSpec_parameter) {
    check(PySet_Add(targets.parameters.get(), target.get()));
    PyObject* value = PyDict_Check(program.state) ? dict_get(program.state, target.get()) : nullptr;
    if (value == nullptr) return false;
    return is_instance(value, fx::symbols.parameter_type);
  }
  if (info.tag != schema::Field::InputSpec_buffer) return true;  // an input token
  check(PySet_Add(targets.buffers.get(), target.get()));
  const Ref persistent = get_attr(spec, fx::names.persistent);
  const bool stored = has_key(program.state, target.get());
  if (persistent.get() == Py_True) return stored;
  return persistent.get() == Py_False && !stored;
}

// Whether an output spec matches `value`, an output of the graph.
bool check_output(PyObject* spec, PyObject* value, const Targets& targets) {
  const Ref argument = get_attr(spec, fx::names.arg);
  if (fx::is_node(value)) {
    const Ref name = find_attr(argument.get(), fx::names.name);
    if (!name || !is_equal(name.get(), fx::node_field(value, fx::symbols.node_name).get()))
      return false;
  } else {
    const Ref constant = find_attr(argument.get(), fx::names.value);
    if (!constant || Py_TYPE(constant.get()) != Py_TYPE(value) ||
        !is_equal(constant.get(), value)) {
      return false;
    }
  }
  // torch's verifier counts two mutations with the same new value as one. check_output() returns
  // false for the second one, so that the verifier decides.
  const auto in = [&](const Ref& set) {
    const Ref name = get_attr(argument.get(), fx::names.name);
    const bool known = contains(targets.mutated.get(), name.get());
    check(PySet_Add(targets.mutated.get(), name.get()));
    return !known && contains(set.get(), get_attr(spec, fx::names.target).get());
  };
  switch (spec_info(spec, schema::Type::OutputSpec).tag) {
    case schema::Field::OutputSpec_buffer_mutation:
      return in(targets.buffers);
    case schema::Field::OutputSpec_parameter_mutation:
      return in(targets.parameters);
    case schema::Field::OutputSpec_user_input_mutation:
      return in(targets.user_inputs);
    default:
      return true;
  }
}

bool check_signature(const ProgramCheck& program, const GraphValues& graph) {
  Targets targets{Ref::steal(PySet_New(nullptr)), Ref::steal(PySet_New(nullptr)),
                  Ref::steal(PySet_New(nullptr)), Ref::steal(PySet_New(nullptr))};
  const Ref inputs =
      Ref::steal(PySequence_Tuple(get_attr(program.signature, fx::names.input_specs).get()));
  Py_ssize_t count = 0;
  for (const NodeEntry& entry : graph.entries) {
    if (entry.op != core::Op::kPlaceholder) continue;
    if (count == PySequence_Fast_GET_SIZE(inputs.get())) return false;
    PyObject* spec = PySequence_Fast_GET_ITEM(inputs.get(), count++);
    if (!check_input(spec, entry.name.get(), program, targets)) return false;
  }
  if (count != PySequence_Fast_GET_SIZE(inputs.get()) || graph.entries.empty()) return false;
  const NodeEntry& output = graph.entries.back();
  if (output.op != core::Op::kOutput) return false;
  const Ref args = fx::args_of(output.node.get());
  if (PyTuple_GET_SIZE(args.get()) == 0) return false;
  const Ref outputs =
      Ref::steal(PySequence_Tuple(get_attr(program.signature, fx::names.output_specs).get()));
  PyObject* returned = PyTuple_GET_ITEM(args.get(), 0);
  if (!PyTuple_Check(returned) && !PyList_Check(returned)) return false;
  const Ref values = Ref::steal(PySequence_Tuple(returned));
  if (PyTuple_GET_SIZE(values.get()) != PyTuple_GET_SIZE(outputs.get())) return false;
  int before = 0;
  for (Py_ssize_t i = 0; i < PyTuple_GET_SIZE(values.get()); ++i) {
    PyObject* spec = PyTuple_GET_ITEM(outputs.get(), i);
    const int now = spec_info(spec, schema::Type::OutputSpec).verifier_rank;
    if (now < before) return false;
    before = now;
    if (!check_output(spec, PyTuple_GET_ITEM(values.get(), i), targets)) return false;
  }
  return true;
}

}  // namespace

bool ProgramCheck::is_surely_valid(const GraphValues& graph) const {
  const Ref list = Ref::steal(PySequence_Tuple(calls));
  for (PyObject* call : items_of(list.get())) {
    if (!check_call(call, graph)) return false;
  }
  return check_signature(*this, graph);
}

bool is_surely_valid(const ProgramCheck& check) {
  OperatorTable operators;
  try {
    for (Py_ssize_t i = 0; i < PyList_GET_SIZE(check.graph_modules); ++i) {
      PyObject* module = PyList_GET_ITEM(check.graph_modules, i);
      const bool is_root = i == 0;
      const GraphValues graph(module, operators, {true, check.functional, is_root});
      if (!graph.is_surely_valid()) return false;
      const auto is_duplicate = [](const NodeEntry& entry) {
        return entry.duplicate_of != core::PositionTable::kAbsent;
      };
      if (std::any_of(graph.entries.begin(), graph.entries.end(), is_duplicate)) return false;
      if (is_root && !check.is_surely_valid(graph)) return false;
    }
  } catch (const Doubtful&) {
    return false;
  }
  return true;
}

}  // namespace fxpress::serde
