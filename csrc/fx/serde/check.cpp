#include "fx/serde/check.h"

#include <memory>
#include <vector>

#include "core/flat_map.h"
#include "core/string_pool.h"
#include "fx/reader.h"
#include "fx/serde/graph_values.h"
#include "fx/serde/kinds.h"
#include "fx/serde/symbols.h"
#include "fx/symbols.h"

namespace fxpress::fx::serde {

namespace {

bool is_a(PyObject* value, PyObject* type) {
  return PyObject_TypeCheck(value, as_type(type)) != 0;
}

bool equal(PyObject* a, PyObject* b) {
  if (a == b) return true;
  const int result = PyObject_RichCompareBool(a, b, Py_EQ);
  check(result);
  return result != 0;
}

bool has_key(PyObject* dict, PyObject* key) {
  return PyDict_Check(dict) && dict_get(dict, key) != nullptr;
}

// Whether meta["val"] is of a type that values may have.
bool is_value(PyObject* value, int depth = 0) {
  if (value == Py_None || PyUnicode_Check(value) || table_of(value) != Table::kNone) return true;
  if (is_a(value, symbols.custom_obj_argument_type) || is_a(value, symbols.dtype_type) ||
      is_a(value, symbols.device_type) || is_a(value, symbols.layout_type) ||
      is_a(value, symbols.memory_format_type)) {
    return true;
  }
  if ((!PyTuple_Check(value) && !PyList_Check(value)) || depth == 8) return false;
  for (Py_ssize_t i = 0; i < PySequence_Fast_GET_SIZE(value); ++i) {
    if (!is_value(PySequence_Fast_GET_ITEM(value, i), depth + 1)) return false;
  }
  return true;
}

class GraphCheck {
 public:
  GraphCheck(PyObject* module, bool functional, OperatorTable& operators)
      : module_(module), functional_(functional), operators_(operators) {}

  bool run(bool top_level);
  // Whether a node has this name; false makes it one of the names.
  bool has_name(PyObject* name) { return !add_name(name); }

  std::vector<Ref> placeholder_names;  // in graph order
  Ref returned;                        // the first argument of the last node, an output

 private:
  // False: there is one like it.
  bool add_name(PyObject* name) {
    const size_t before = names_.size();
    names_.intern(utf8(name));
    return names_.size() != before;
  }
  bool check_node(PyObject* node, core::Op op, PyObject* graph, bool top_level);
  bool check_attribute(PyObject* target, bool top_level) const;

  PyObject* module_;
  bool functional_;
  OperatorTable& operators_;
  core::StringPool names_;  // of the nodes so far
  core::FlatMap seen_;      // addresses of the nodes so far
};

bool GraphCheck::check_attribute(PyObject* target, bool top_level) const {
  Ref at = Ref::borrow(module_);
  std::string_view rest = utf8(target);
  while (at) {
    const size_t dot = rest.find('.');
    at = find_attr(at.get(), new_string(rest.substr(0, dot)).get());
    if (dot == std::string_view::npos) break;
    rest.remove_prefix(dot + 1);
  }
  if (!at) return false;
  if (is_a(at.get(), fx::symbols.graph_module_type)) return true;
  return !top_level && is_a(at.get(), fx::symbols.tensor_type);
}

bool GraphCheck::check_node(PyObject* node, core::Op op, PyObject* graph, bool top_level) {
  if (get_attr(node, fx::names.graph).get() != graph) return false;
  const Ref inputs = node_field(node, fx::symbols.node_input_nodes);
  PyObject* input = nullptr;
  for (Py_ssize_t at = 0; PyDict_Next(inputs.get(), &at, &input, nullptr) != 0;) {
    if (seen_.find(reinterpret_cast<uintptr_t>(input)) == core::FlatMap::kAbsent) return false;
  }
  seen_.insert(reinterpret_cast<uintptr_t>(node), 0);
  const Ref name = node_field(node, fx::symbols.node_name);
  if (!add_name(name.get())) return false;
  const Ref target = node_field(node, fx::symbols.node_target);
  if (op == core::Op::kOutput) return PyUnicode_Check(target.get());
  if (op == core::Op::kGetAttr) {
    return PyUnicode_Check(target.get()) && check_attribute(target.get(), top_level);
  }
  if (op == core::Op::kCallFunction) {
    const Operator& function = operators_.get(target.get());
    if (!(functional_ ? function.is_functional : function.is_allowed)) return false;
    if (function.kind == OperatorKind::kSchema && function.returns.empty()) return true;
  } else if (op == core::Op::kPlaceholder) {
    if (!PyUnicode_Check(target.get())) return false;
    placeholder_names.push_back(Ref::borrow(name.get()));
  } else {
    return false;
  }
  const Ref meta = node_field(node, fx::symbols.node_meta);
  PyObject* value = dict_get(meta.get(), fx::names.val);
  return value != nullptr && is_value(value);
}

bool GraphCheck::run(bool top_level) {
  const Ref graph = get_attr(module_, fx::names.graph);
  if (get_attr(graph.get(), fx::names.owning_module).get() != module_) return false;
  const std::vector<Ref> nodes = list_nodes(graph.get());
  seen_ = core::FlatMap(nodes.size());
  for (size_t i = 0; i < nodes.size(); ++i) {
    poll_signals(i);
    PyObject* node = nodes[i].get();
    const core::Op op = parse_op(node_field(node, fx::symbols.node_op).get());
    if (!check_node(node, op, graph.get(), top_level)) return false;
    if (op != core::Op::kOutput) continue;
    const Ref args = node_field(node, fx::symbols.node_args);
    if (i + 1 != nodes.size() || PyTuple_GET_SIZE(args.get()) == 0) return false;
    returned = Ref::borrow(PyTuple_GET_ITEM(args.get(), 0));
  }
  return static_cast<bool>(returned);
}

// The names in the signature of a call are those of nodes.
bool check_call(PyObject* entry, GraphCheck& graph) {
  const Ref signature = get_attr(entry, names.signature);
  if (signature.get() == Py_None) return true;
  for (PyObject* role : {names.inputs, names.outputs}) {
    const Ref list = Ref::steal(PySequence_Fast(get_attr(signature.get(), role).get(), ""));
    for (Py_ssize_t i = 0; i < PySequence_Fast_GET_SIZE(list.get()); ++i) {
      const Ref name = get_attr(PySequence_Fast_GET_ITEM(list.get(), i), fx::names.name);
      if (!PyUnicode_Check(name.get())) return false;
      if (PyUnicode_GET_LENGTH(name.get()) != 0 && !graph.has_name(name.get())) return false;
    }
  }
  return true;
}

// Parameters, buffers and user inputs by what a mutation of them names.
struct Targets {
  Ref parameters, buffers, user_inputs;  // sets
};

bool check_input(PyObject* spec, PyObject* node_name, const CheckedProgram& program,
                 Targets& targets) {
  const Ref argument = get_attr(spec, fx::names.arg);
  const Ref target = get_attr(spec, fx::names.target);
  const bool tensor = is_a(argument.get(), symbols.tensor_argument_type);
  if (tensor || is_a(argument.get(), symbols.sym_int_argument_type) ||
      is_a(argument.get(), symbols.sym_float_argument_type) ||
      is_a(argument.get(), symbols.sym_bool_argument_type)) {
    if (!equal(get_attr(argument.get(), fx::names.name).get(), node_name)) return false;
  }
  const InputKind kind = input_kind(spec);
  if (kind == InputKind::kUserInput) {
    check(PySet_Add(targets.user_inputs.get(), node_name));
    return true;
  }
  if (kind == InputKind::kToken) return is_a(argument.get(), symbols.token_argument_type);
  if (target.get() == Py_None) return false;
  if (kind == InputKind::kCustomObject) {
    return is_a(argument.get(), symbols.custom_obj_argument_type) &&
           has_key(program.constants, target.get());
  }
  if (!tensor) return false;
  if (kind == InputKind::kConstantTensor) return has_key(program.constants, target.get());
  if (kind == InputKind::kParameter) {
    check(PySet_Add(targets.parameters.get(), target.get()));
    PyObject* value = PyDict_Check(program.state) ? dict_get(program.state, target.get()) : nullptr;
    if (value == nullptr) return false;
    const int is_parameter = PyObject_IsInstance(value, fx::symbols.parameter_type);
    check(is_parameter);
    return is_parameter != 0;
  }
  check(PySet_Add(targets.buffers.get(), target.get()));
  const Ref persistent = get_attr(spec, fx::names.persistent);
  const bool stored = has_key(program.state, target.get());
  if (persistent.get() == Py_True) return stored;
  return persistent.get() == Py_False && !stored;
}

// What is returned is what the signature says, at the same places.
bool check_output(PyObject* spec, PyObject* value, const Targets& targets) {
  const Ref argument = get_attr(spec, fx::names.arg);
  if (is_node(value)) {
    const Ref name = find_attr(argument.get(), fx::names.name);
    if (!name || !equal(name.get(), node_field(value, fx::symbols.node_name).get())) return false;
  } else {
    const Ref constant = find_attr(argument.get(), names.value);
    if (!constant || Py_TYPE(constant.get()) != Py_TYPE(value) || !equal(constant.get(), value)) {
      return false;
    }
  }
  const auto in = [&](const Ref& set) {
    const int found = PySet_Contains(set.get(), get_attr(spec, fx::names.target).get());
    check(found);
    return found != 0;
  };
  switch (output_kind(spec)) {
    case OutputKind::kBufferMutation:
      return in(targets.buffers);
    case OutputKind::kParameterMutation:
      return in(targets.parameters);
    case OutputKind::kUserInputMutation:
      return in(targets.user_inputs);
    default:
      return true;
  }
}

// Where outputs of a kind come: tokens, mutations, what the user gets.
int rank(OutputKind kind) {
  switch (kind) {
    case OutputKind::kToken:
      return 0;
    case OutputKind::kBufferMutation:
    case OutputKind::kParameterMutation:
    case OutputKind::kUserInputMutation:
      return 1;
    default:
      return 2;
  }
}

bool check_signature(const CheckedProgram& program, const GraphCheck& graph) {
  Targets targets{Ref::steal(PySet_New(nullptr)), Ref::steal(PySet_New(nullptr)),
                  Ref::steal(PySet_New(nullptr))};
  const Ref inputs =
      Ref::steal(PySequence_Fast(get_attr(program.signature, names.input_specs).get(), ""));
  const auto count = static_cast<size_t>(PySequence_Fast_GET_SIZE(inputs.get()));
  if (count != graph.placeholder_names.size()) return false;
  for (size_t i = 0; i < count; ++i) {
    PyObject* spec = PySequence_Fast_GET_ITEM(inputs.get(), static_cast<Py_ssize_t>(i));
    if (!check_input(spec, graph.placeholder_names[i].get(), program, targets)) return false;
  }
  const Ref outputs =
      Ref::steal(PySequence_Fast(get_attr(program.signature, names.output_specs).get(), ""));
  PyObject* values = graph.returned.get();
  if (!PyTuple_Check(values) && !PyList_Check(values)) return false;
  if (PySequence_Fast_GET_SIZE(values) != PySequence_Fast_GET_SIZE(outputs.get())) return false;
  int before = 0;
  for (Py_ssize_t i = 0; i < PySequence_Fast_GET_SIZE(values); ++i) {
    PyObject* spec = PySequence_Fast_GET_ITEM(outputs.get(), i);
    const int now = rank(output_kind(spec));
    if (now < before) return false;
    before = now;
    if (!check_output(spec, PySequence_Fast_GET_ITEM(values, i), targets)) return false;
  }
  return true;
}

}  // namespace

bool is_surely_valid(const CheckedProgram& program) {
  OperatorTable operators;
  std::vector<std::unique_ptr<GraphCheck>> graphs;
  for (Py_ssize_t i = 0; i < PyList_GET_SIZE(program.graph_modules); ++i) {
    PyObject* module = PyList_GET_ITEM(program.graph_modules, i);
    graphs.push_back(std::make_unique<GraphCheck>(module, program.functional, operators));
    if (!graphs.back()->run(i == 0)) return false;
  }
  if (graphs.empty()) return false;
  const Ref calls = Ref::steal(PySequence_Fast(program.calls, "expected a list of calls"));
  for (Py_ssize_t i = 0; i < PySequence_Fast_GET_SIZE(calls.get()); ++i) {
    if (!check_call(PySequence_Fast_GET_ITEM(calls.get(), i), *graphs[0])) return false;
  }
  return check_signature(program, *graphs[0]);
}

}  // namespace fxpress::fx::serde
