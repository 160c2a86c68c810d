#include <ATen/core/dispatch/Dispatcher.h>

#include "engine/builder.h"
#include "engine/convert.h"
#include "engine/operators.h"

namespace fxpress::engine {

namespace {

// Returns which type a value must have for a parameter of type `type`, and whether it may be None.
std::pair<Expect, bool> expected(const c10::TypePtr& type) {
  switch (type->kind()) {
    case c10::TypeKind::TensorType:
      return {Expect::kTensor, false};
    case c10::TypeKind::IntType:
    case c10::TypeKind::SymIntType:
      return {Expect::kInt, false};
    case c10::TypeKind::FloatType:
    case c10::TypeKind::SymFloatType:
      return {Expect::kFloat, false};
    case c10::TypeKind::BoolType:
    case c10::TypeKind::SymBoolType:
      return {Expect::kBool, false};
    case c10::TypeKind::NumberType:
      return {Expect::kNumber, false};
    case c10::TypeKind::ListType: {
      const auto [element, optional] = expected(type->castRaw<c10::ListType>()->getElementType());
      if (optional) return {Expect::kNothing, false};
      if (element == Expect::kTensor) return {Expect::kTensorList, false};
      if (element == Expect::kInt) return {Expect::kIntList, false};
      return {Expect::kNothing, false};
    }
    case c10::TypeKind::OptionalType:
      return {expected(type->castRaw<c10::OptionalType>()->getElementType()).first, true};
    default:
      return {Expect::kNothing, false};
  }
}

// Returns `type`, or the type inside an Optional, as a list type; null if it is not a list type.
const c10::ListType* list_type(const c10::TypePtr& type) {
  if (const auto* optional = type->castRaw<c10::OptionalType>()) {
    return optional->getElementType()->castRaw<c10::ListType>();
  }
  return type->castRaw<c10::ListType>();
}

// Sets `number` to the value of an int of at most 64 bits. Returns false for any other object.
bool small_int(PyObject* object, int64_t& number) {
  if (!PyLong_CheckExact(object)) return false;
  int overflow = 0;
  number = PyLong_AsLongLongAndOverflow(object, &overflow);
  return overflow == 0;
}

}  // namespace

// Returns kDeeper if the argument is deeply nested, or contains the same containers many times.
Builder::Nodes Builder::nodes_in(PyObject* argument) {
  constexpr size_t kMaxDepth = 100;
  constexpr size_t kMaxSteps = 100'000;
  Nodes found = Nodes::kNoNode;
  walk_.clear();
  size_t steps = 0;
  for (PyObject* object = argument; object != nullptr; object = next_inside(walk_)) {
    if (walk_.size() > kMaxDepth || ++steps > kMaxSteps) return Nodes::kDeeper;
    if (is_node(object)) {
      if (walk_.empty()) return Nodes::kSelf;
      const ArgKind kind = walk_.back().kind;
      const bool is_item = kind == ArgKind::kTuple || kind == ArgKind::kList;
      if (walk_.size() > 1 || !is_item) return Nodes::kDeeper;
      found = Nodes::kItems;
    } else if (const ArgKind kind = arg_kind(object); kind != ArgKind::kLeaf) {
      walk_.push_back({object, kind});
    }
  }
  return found;
}

uint32_t Builder::value_of(const Open& open, PyObject* node) const {
  const auto found = open.env.find(node);
  return found == open.env.end() ? kNone : found->second;
}

// Returns whether `target` is an OpOverload whose class has torch's own __call__, so that calling
// it does nothing but call an operator through the dispatcher.
bool Builder::calls_overload(PyObject* target) {
  PyTypeObject* type = Py_TYPE(target);
  if (reinterpret_cast<PyObject*>(type) != fx::symbols.op_overload_type) return false;
  refuse(type);  // a later patch of the class makes the plan invalid
  return _PyType_Lookup(type, names.dunder_call) == symbols.op_overload_call;
}

bool Builder::try_boxed(Open& open, const NodeGuard& guard) {
  PyObject* target = guard.target.get();
  if (!calls_overload(target)) return false;
  const auto op = find_operator(target);
  if (!op) return false;
  const c10::FunctionSchema& schema = op->schema();
  if (schema.is_vararg() || schema.is_varret()) return false;
  const bool numbers = takes_numbers_as_tensors(schema);
  PyObject* args = guard.args.get();
  PyObject* kwargs = guard.kwargs.get();
  const auto positional = static_cast<size_t>(PyTuple_GET_SIZE(args));
  const auto& parameters = schema.arguments();
  if (positional > parameters.size()) return false;

  std::vector<Argument> resolved;
  Py_ssize_t keywords = 0;
  for (size_t i = 0; i < parameters.size(); ++i) {
    PyObject* object = nullptr;
    if (i < positional) {
      if (parameters[i].kwarg_only()) return false;  // Python makes the call and raises an error
      object = PyTuple_GET_ITEM(args, static_cast<Py_ssize_t>(i));
    } else {
      object = PyDict_GetItemString(kwargs, parameters[i].name().c_str());
      if (object != nullptr) ++keywords;
    }
    const auto& missing = parameters[i].default_value();
    std::optional<Argument> argument;
    if (object != nullptr) {
      argument = resolve(open, parameters[i], object, numbers);
    } else if (missing) {
      argument = constant(*missing);
    }
    if (!argument) return false;
    resolved.push_back(*argument);
  }
  if (keywords != PyDict_GET_SIZE(kwargs)) return false;

  const auto begin = static_cast<uint32_t>(plan_->arguments.size());
  plan_->arguments.insert(plan_->arguments.end(), resolved.begin(), resolved.end());
  const BoxedCall call{*op, begin, static_cast<uint32_t>(plan_->arguments.size()), numbers};
  const uint32_t instruction = emit(open, Kind::kBoxed, guard, append(plan_->boxed, call));
  if (may_run_python(schema.operator_name())) {
    plan_->instructions[instruction].runs_python = true;
    plan_->events.push_back(instruction);
  }
  define(open, guard.node.get(), instruction);
  return true;
}

std::optional<Argument> Builder::resolve(const Open& open, const c10::Argument& parameter,
                                         PyObject* object, bool numbers) {
  switch (nodes_in(object)) {
    case Nodes::kNoNode: {
      // No operator accepts a dict or slice of constants. Python makes the call and raises an
      // error.
      if (PyDict_Check(object) || PySlice_Check(object)) return std::nullopt;
      auto value = constant_value(parameter, object, numbers);
      if (!value) return std::nullopt;
      return constant(std::move(*value));
    }
    case Nodes::kSelf: {
      const auto [expect, optional] = expected(parameter.real_type());
      const uint32_t value = value_of(open, object);
      if (value == kNone || expect == Expect::kNothing) return std::nullopt;
      return Argument{Argument::Form::kSlot, expect, optional, false, value};
    }
    case Nodes::kItems:
      return resolve_list(open, parameter, object);
    case Nodes::kDeeper:
      break;
  }
  return std::nullopt;
}

std::optional<Argument> Builder::resolve_list(const Open& open, const c10::Argument& parameter,
                                              PyObject* object) {
  const c10::ListType* type = list_type(parameter.real_type());
  if (type == nullptr) return std::nullopt;
  const auto [element, optional] = expected(type->getElementType());
  if (element != Expect::kTensor && (element != Expect::kInt || optional)) return std::nullopt;
  ListArgument list{element, optional, {}};
  PyObject** items = PySequence_Fast_ITEMS(object);
  for (Py_ssize_t i = 0; i < PySequence_Fast_GET_SIZE(object); ++i) {
    int64_t number = 0;
    if (is_node(items[i])) {
      const uint32_t value = value_of(open, items[i]);
      if (value == kNone) return std::nullopt;
      list.elements.push_back(Element{value, false, {}});
    } else if (items[i] == Py_None && optional) {
      list.elements.push_back(Element{kNone, false, c10::IValue()});
    } else if (element == Expect::kInt && small_int(items[i], number)) {
      list.elements.push_back(Element{kNone, false, c10::IValue(number)});
    } else {
      return std::nullopt;
    }
  }
  return Argument{Argument::Form::kList, element, false, false,
                  append(plan_->lists, std::move(list))};
}

Argument Builder::constant(c10::IValue value) {
  return Argument{Argument::Form::kConstant, Expect::kNothing, false, false,
                  append(plan_->constants, std::move(value))};
}

bool Builder::try_item(Open& open, const NodeGuard& guard) {
  PyObject* args = guard.args.get();
  if (guard.target.get() != fx::symbols.getitem || PyTuple_GET_SIZE(args) != 2 ||
      PyDict_GET_SIZE(guard.kwargs.get()) != 0) {
    return false;
  }
  GetItem item{0, kNone, false};
  if (!is_node(PyTuple_GET_ITEM(args, 0)) || !small_int(PyTuple_GET_ITEM(args, 1), item.index)) {
    return false;
  }
  item.slot = value_of(open, PyTuple_GET_ITEM(args, 0));
  if (item.slot == kNone) return false;
  define(open, guard.node.get(), emit(open, Kind::kGetItem, guard, append(plan_->items, item)));
  return true;
}

bool Builder::try_int(Open& open, const NodeGuard& guard) {
  PyObject* args = guard.args.get();
  PyObject* target = guard.target.get();
  if (!PyCFunction_Check(target) || PyTuple_GET_SIZE(args) != 2 ||
      PyDict_GET_SIZE(guard.kwargs.get()) != 0) {
    return false;
  }
  PyObject* number = dict_get(symbols.int_operators, target);
  if (number == nullptr) return false;
  IntCall call{static_cast<IntOp>(PyLong_AsLong(number)), {kNone, kNone}, {0, 0}};
  for (int i = 0; i < 2; ++i) {
    PyObject* argument = PyTuple_GET_ITEM(args, i);
    if (is_node(argument)) {
      call.slot[i] = value_of(open, argument);
      if (call.slot[i] == kNone) return false;
    } else if (!small_int(argument, call.constant[i])) {
      return false;
    }
  }
  define(open, guard.node.get(), emit(open, Kind::kInt, guard, append(plan_->ints, call)));
  return true;
}

}  // namespace fxpress::engine
