#include <algorithm>
#include <utility>

#include "engine/builder.h"
#include "engine/modules.h"
#include "engine/operators.h"
#include "fx/reader.h"
#include "py/calls.h"
#include "py/instance_dict.h"

namespace fxpress::engine {

namespace {

// When a plan has this many instructions, no more modules are inlined. Without a limit, the plan
// could double with each level of modules, for example if each module calls its child twice.
constexpr size_t kMaxInstructions = 500'000;

bool is_op(PyObject* op, PyObject* name) {
  return op == name || (PyUnicode_Check(op) && PyUnicode_Compare(op, name) == 0);
}

}  // namespace

Builder::Builder(PyObject* module, PyObject* graph) : plan_(std::make_unique<Plan>()) {
  plan_->graph = Ref::borrow(graph);
  plan_->kernels = kernels_version();
  plan_->operators = operators_gone();  // first, so that later removals are noticed
  add_module(module, kNone, nullptr, kNone);
}

std::unique_ptr<Plan> Builder::build() {
  PyObject* graph = plan_->graph.get();
  plan_->root = graph_root(graph);
  if (plan_->root == nullptr) raise(PyExc_TypeError, "expected a torch.fx.Graph, got %R", graph);
  const NodeRange own = add_nodes(graph);
  plan_->root_nodes = own.end;
  plan_->frames.push_back(Frame{});
  frame_enters_.push_back(kNone);
  stack_.push_back(Open{0, own.begin, own.end, kNone, plan_->root, {}});
  while (!stack_.empty()) {
    Open& open = stack_.back();
    if (open.node == open.nodes_end) {  // the root's graph lacks an output
      stack_.pop_back();
      continue;
    }
    const NodeGuard& guard = plan_->nodes[open.node++];
    if (!fx::is_erased(guard.node.get()))
      add_node(open, guard);  // may push to stack_ or pop from it
  }
  assign_slots();
  return std::move(plan_);
}

Builder::NodeRange Builder::add_nodes(PyObject* graph) {
  const auto found = ranges_.find(graph);
  if (found != ranges_.end()) return found->second;
  PyObject* root = graph_root(graph);
  const auto begin = static_cast<uint32_t>(plan_->nodes.size());
  const auto own = [](PyObject* node, PyObject* descriptor) {
    PyObject* field = node_field(node, descriptor);
    if (field == nullptr)
      raise(PyExc_AttributeError, "node %R: expected a value in each field, found none in %R", node,
            reinterpret_cast<PyDescrObject*>(descriptor)->d_name);
    return Ref::borrow(field);
  };
  const fx::Symbols& at = fx::symbols;
  fx::walk_nodes(root, [&](PyObject* node) {
    if (!PyTuple_Check(own(node, at.node_args).get()) ||
        !PyDict_Check(own(node, at.node_kwargs).get())) {
      raise(PyExc_TypeError, "node %R: expected a tuple as its args and a dict as its kwargs",
            node);
    }
    plan_->nodes.push_back(NodeGuard{Ref::borrow(node), own(node, at.node_op),
                                     own(node, at.node_target), own(node, at.node_args),
                                     own(node, at.node_kwargs), node_field(node, at.node_next)});
  });
  const NodeRange range{begin, static_cast<uint32_t>(plan_->nodes.size())};
  ranges_.emplace(graph, range);
  return range;
}

void Builder::add_node(Open& open, const NodeGuard& guard) {
  PyObject* op = guard.op.get();
  PyObject* node = guard.node.get();
  if (is_op(op, fx::symbols.call_function)) {
    if (try_boxed(open, guard) || try_item(open, guard) || try_int(open, guard)) return;
    define(open, node, emit(open, Kind::kFunction, guard));
  } else if (is_op(op, fx::symbols.get_attr)) {
    define(open, node, add_load(open, guard), true);
  } else if (is_op(op, fx::symbols.call_module)) {
    const uint32_t call = open.node - 1;
    if (try_inline(open, guard)) return;
    define(open, node,
           emit(open, Kind::kModule,
                plan_->nodes[call]));  // try_inline() may have invalidated `guard`
  } else if (is_op(op, fx::symbols.call_method)) {
    define(open, node, emit(open, Kind::kMethod, guard));
  } else if (is_op(op, fx::symbols.placeholder)) {
    add_placeholder(open, guard);
  } else if (is_op(op, fx::symbols.output)) {
    if (open.enter == kNone) {
      emit(open, Kind::kOutput, guard);
    } else {
      add_leave(open, guard);
    }
    stack_.pop_back();
  } else {
    raise(PyExc_AttributeError, "'Interpreter' object has no attribute %R", op);
  }
}

void Builder::add_placeholder(Open& open, const NodeGuard& guard) {
  if (open.enter != kNone) return;  // bind_arguments() has set the value
  PyObject* target = guard.target.get();
  const bool rest = PyUnicode_Check(target) && PyUnicode_GET_LENGTH(target) > 0 &&
                    PyUnicode_READ_CHAR(target, 0) == '*';
  const uint32_t value = new_value(kNone);
  open.env[guard.node.get()] = value;
  plan_->placeholders.push_back(Placeholder{guard.node.get(), value, rest});
}

uint32_t Builder::add_load(Open& open, const NodeGuard& guard) {
  Load load{};
  load.owner = kNone;
  PyObject* target = guard.target.get();
  if (PyUnicode_Check(target)) {
    const uint32_t from = plan_->frames[open.frame].module;
    const Py_ssize_t size = PyUnicode_GET_LENGTH(target);
    const Py_ssize_t dot = PyUnicode_FindChar(target, '.', 0, size, -1);
    check(dot < -1 ? -1 : 0);
    const Ref path = Ref::steal(PyUnicode_Substring(target, 0, dot < 0 ? 0 : dot));
    PyObject* name = Ref::steal(PyUnicode_Substring(target, dot + 1, size)).release();
    PyUnicode_InternInPlace(&name);
    load.name = Ref::steal(name);
    load.owner = dot < 0 ? from : find_module(from, path.get());
  }
  return emit(open, Kind::kLoad, guard, append(plan_->loads, std::move(load)));
}

uint32_t Builder::emit(const Open& open, Kind kind, const NodeGuard& guard, uint32_t detail) {
  Instruction made{};
  made.kind = kind;
  made.frame = open.frame;
  made.guard = static_cast<uint32_t>(&guard - plan_->nodes.data());
  made.out = kNone;
  made.detail = detail;
  made.uses_begin = static_cast<uint32_t>(plan_->uses.size());
  PyObject* inputs = node_field(guard.node.get(), fx::symbols.node_input_nodes);
  if (inputs != nullptr && PyDict_Check(inputs)) {
    for (const auto& [input, ignored] : DictRange(inputs)) {
      plan_->uses.push_back(Use{input, value_of(open, input), false});
    }
  }
  made.uses_end = static_cast<uint32_t>(plan_->uses.size());
  const uint32_t index = append(plan_->instructions, made);
  const bool boxed = kind == Kind::kBoxed || kind == Kind::kGetItem || kind == Kind::kInt;
  if (!boxed) plan_->events.push_back(index);
  return index;
}

uint32_t Builder::new_value(uint32_t definition, bool fixed) {
  return append(values_, Value{definition, kNone, fixed});
}

void Builder::define(Open& open, PyObject* node, uint32_t instruction, bool fixed) {
  const uint32_t value = new_value(instruction, fixed);
  plan_->instructions[instruction].out = value;
  open.env[node] = value;
}

bool Builder::try_inline(Open& open, const NodeGuard& guard) {
  if (plan_->instructions.size() > kMaxInstructions) return false;
  const uint32_t from = plan_->frames[open.frame].module;
  Enter enter{};
  enter.module = find_module(from, guard.target.get());
  if (enter.module == kNone) return false;
  if (is_dispatcher(plan_->modules[enter.module].forward)) {
    enter.module = dispatched_module(enter.module, enter);
    if (enter.module == kNone) return false;
  }
  const ModuleRef& callee = plan_->modules[enter.module];
  if (callee.forward != Forward::kModule || callee.graph == nullptr) {
    refuse(callee.type);
    return false;
  }
  enter.graph = Ref::borrow(callee.graph);
  enter.root = graph_root(callee.graph);
  if (enter.root == nullptr) return false;
  // A graph that calls itself cannot be inlined.
  const auto same = [&](const Open& other) { return other.root == enter.root; };
  if (std::any_of(stack_.begin(), stack_.end(), same)) return false;
  const bool keywords = PyDict_GET_SIZE(guard.kwargs.get()) != 0;
  const NodeRange range = add_nodes(callee.graph);  // may move nodes, so `guard` is invalid
  enter.nodes_begin = range.begin;
  enter.nodes_end = range.end;
  if (keywords) {
    const Ref dict = instance_dict(callee.module.get());
    PyObject* arg_names = dict_get(dict.get(), names.arg_names);
    if (arg_names == nullptr || !PyList_CheckExact(arg_names)) return false;
    enter.arg_names = Ref::borrow(arg_names);
  }
  std::vector<PyObject*> bound;
  const uint32_t call = open.node - 1;
  if (!bind_arguments(open, plan_->nodes[call], enter, bound)) return false;

  PyObject* node = plan_->nodes[call].node.get();
  const auto index = static_cast<uint32_t>(plan_->enters.size());
  const uint32_t instruction = emit(open, Kind::kEnter, plan_->nodes[call], index);
  enter_instructions_.push_back(instruction);
  Frame frame{open.frame, node, enter.module, enter.dispatcher};
  Open inner{
      static_cast<uint32_t>(plan_->frames.size()), range.begin, range.end, index, enter.root, {}};
  size_t position = 0;
  for (uint32_t i = range.begin; i < range.end; ++i) {
    const NodeGuard& inside = plan_->nodes[i];
    if (!is_op(inside.op.get(), fx::symbols.placeholder)) continue;
    PyObject* argument = bound[position++];
    if (is_node(argument)) {
      inner.env[inside.node.get()] = value_of(open, argument);
      continue;
    }
    const Open constant{open.frame, 0, 0, kNone, nullptr, {}};
    const uint32_t made =
        emit(constant, Kind::kConstant, inside, append(plan_->objects, Ref::borrow(argument)));
    define(inner, inside.node.get(), made, true);
  }
  plan_->enters.push_back(std::move(enter));
  plan_->frames.push_back(frame);
  frame_enters_.push_back(index);
  stack_.push_back(std::move(inner));
  return true;
}

// Finds the argument (a node or constant) of each placeholder of the callee. Returns false if
// Python must make the call, because only InterpreterModule.forward handles its arguments or
// errors.
bool Builder::bind_arguments(Open& open, const NodeGuard& guard, const Enter& enter,
                             std::vector<PyObject*>& bound) {
  PyObject* args = guard.args.get();
  PyObject* kwargs = guard.kwargs.get();
  bound.assign(items_of(args).begin(), items_of(args).end());
  if (enter.arg_names) {
    PyObject* list = enter.arg_names.get();
    const Py_ssize_t first = PyTuple_GET_SIZE(args);
    if (PyList_GET_SIZE(list) - first != PyDict_GET_SIZE(kwargs)) return false;
    for (Py_ssize_t i = first; i < PyList_GET_SIZE(list); ++i) {
      PyObject* value = dict_get(kwargs, PyList_GET_ITEM(list, i));
      if (value == nullptr) return false;
      bound.push_back(value);
    }
  }
  size_t placeholders = 0;
  bool has_output = false;
  for (uint32_t i = enter.nodes_begin; i < enter.nodes_end; ++i) {
    const NodeGuard& inside = plan_->nodes[i];
    if (is_op(inside.op.get(), fx::symbols.output)) has_output = true;
    if (!is_op(inside.op.get(), fx::symbols.placeholder)) continue;
    PyObject* target = inside.target.get();
    if (has_output || !PyUnicode_Check(target) || PyUnicode_GET_LENGTH(target) == 0 ||
        PyUnicode_READ_CHAR(target, 0) == '*') {
      return false;
    }
    ++placeholders;
  }
  if (!has_output || placeholders != bound.size()) return false;
  return std::ranges::all_of(bound, [&](PyObject* argument) {
    const Nodes nodes = nodes_in(argument);
    return nodes == Nodes::kNoNode || (nodes == Nodes::kSelf && value_of(open, argument) != kNone);
  });
}

// Returns whether an instruction of the inlined graph computes the value during a run. (A get_attr
// or constant is read earlier.) If so, a call by Python can store its result in the value's slot.
bool Builder::is_made_in(const Open& open, uint32_t value) const {
  if (value == kNone || values_[value].definition == kNone || values_[value].fixed) return false;
  return values_[value].definition > enter_instructions_[open.enter];
}

// Defines the call's value: the output of the inlined graph.
void Builder::add_leave(Open& open, const NodeGuard& guard) {
  Open& caller = stack_[stack_.size() - 2];
  PyObject* args = guard.args.get();
  PyObject* value = PyTuple_GET_SIZE(args) == 0 ? nullptr : PyTuple_GET_ITEM(args, 0);
  // kNone: the output is neither a node nor a tuple of nodes, so Python builds it.
  uint32_t detail = kNone;
  if (value != nullptr && PyTuple_CheckExact(value)) {
    ListArgument list{Expect::kNothing, false, {}};
    for (PyObject* item : items_of(value)) {
      if (!is_node(item)) break;
      list.elements.push_back(Element{value_of(open, item), false, {}});
    }
    if (list.elements.size() == static_cast<size_t>(PyTuple_GET_SIZE(value))) {
      detail = append(plan_->lists, std::move(list));
    }
  } else if (value != nullptr && is_node(value)) {
    if (const uint32_t made = value_of(open, value); is_made_in(open, made)) {
      const uint32_t instruction = emit(open, Kind::kPass, guard, made);
      plan_->events.pop_back();
      plan_->enters[open.enter].skip = instruction + 1;
      caller.env[plan_->frames[open.frame].call] = made;
      return;
    }
    ListArgument single{Expect::kTensor, false, {}};  // kTensor: one value, not a tuple
    single.elements.push_back(Element{value_of(open, value), false, {}});
    detail = append(plan_->lists, std::move(single));
  }
  const uint32_t instruction = emit(open, Kind::kLeave, guard, detail);
  if (detail != kNone) plan_->events.pop_back();  // this kLeave does not need Python
  Enter& enter = plan_->enters[open.enter];
  enter.skip = instruction + 1;
  const uint32_t result = new_value(instruction);
  plan_->instructions[instruction].out = result;
  caller.env[plan_->frames[open.frame].call] = result;
}

uint32_t Builder::find_module(uint32_t from, PyObject* path) {
  if (!PyUnicode_Check(path)) return kNone;
  const Py_ssize_t size = PyUnicode_GET_LENGTH(path);
  uint32_t module = from;
  for (Py_ssize_t start = 0; start <= size && module != kNone;) {
    Py_ssize_t end = PyUnicode_FindChar(path, '.', start, size, 1);
    if (end < 0) end = size;
    PyObject* name = Ref::steal(PyUnicode_Substring(path, start, end)).release();
    PyUnicode_InternInPlace(&name);
    const Ref atom = Ref::steal(name);
    module = child_module(module, atom.get());
    start = end + 1;
  }
  return module;
}

uint32_t Builder::child_module(uint32_t parent, PyObject* name) {
  const auto known = children_[parent].find(name);  // `name` is interned
  if (known != children_[parent].end()) return known->second;
  PyObject* members = plain_children(plan_->modules[parent], name);
  PyObject* child = members == nullptr ? nullptr : dict_get(members, name);
  if (members == nullptr) refuse(plan_->modules[parent].type);
  if (child == nullptr || child == Py_None) return kNone;
  const uint32_t made = add_module(child, parent, name, kNone);
  children_[parent].emplace(name, made);
  return made;
}

// Returns the module that an InterpreterModuleDispatcher will call at this point of a run.
uint32_t Builder::dispatched_module(uint32_t dispatcher, Enter& enter) {
  PyObject* object = plan_->modules[dispatcher].module.get();
  const Ref dict = instance_dict(object);
  PyObject* calls = dict_get(dict.get(), names.call_modules);
  if (calls == nullptr || !PyList_CheckExact(calls)) return kNone;
  const Py_ssize_t count = PyList_GET_SIZE(calls);
  auto known = next_calls_.find(object);
  if (known == next_calls_.end()) {
    CallCounters* scope = CallCounters::current();
    const int64_t next = scope == nullptr ? stored_call(object) : scope->next(object);
    known = next_calls_.emplace(object, next).first;
  }
  const int64_t index = known->second;
  if (index < 0 || index >= count) return kNone;
  known->second = (index + 1) % count;
  enter.dispatcher = dispatcher;
  enter.call_index = static_cast<uint32_t>(index);
  enter.call_count = static_cast<uint32_t>(count);
  const std::pair key(dispatcher, enter.call_index);
  const auto child = dispatched_.find(key);
  if (child != dispatched_.end()) return child->second;
  PyObject* callee = PyList_GET_ITEM(calls, index);
  const uint32_t made = add_module(callee, dispatcher, nullptr, enter.call_index);
  dispatched_.emplace(key, made);
  return made;
}

void Builder::refuse(PyTypeObject* type) {
  for (const Refusal& known : plan_->refusals) {
    if (known.type.get() == reinterpret_cast<PyObject*>(type)) return;
  }
  plan_->refusals.push_back(
      Refusal{Ref::borrow(reinterpret_cast<PyObject*>(type)), current_version(type)});
}

uint32_t Builder::add_module(PyObject* module, uint32_t parent, PyObject* name, uint32_t item) {
  ModuleRef ref{};
  ref.module = Ref::borrow(module);
  ref.parent = parent;
  if (name != nullptr) ref.name = Ref::borrow(name);
  ref.item = item;
  refresh(ref);
  return append(plan_->modules, std::move(ref));
}

}  // namespace fxpress::engine
