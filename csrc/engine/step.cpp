#include "engine/operators.h"
#include "engine/run.h"
#include "fx/arguments.h"
#include "py/calls.h"

namespace fxpress::engine {

// Executes one instruction as torch.fx.Interpreter does.
void Run::step() {
  const Instruction& instruction = plan_.instructions[ip_];
  PyObject* args = guard_of(instruction).args.get();
  PyObject* kwargs = guard_of(instruction).kwargs.get();
  uint32_t out = instruction.out;
  hint_ = 0;
  uint32_t next = ip_ + 1;
  Ref value;
  if (instruction.kind == Kind::kOutput || instruction.kind == Kind::kLeave) {
    if (PyTuple_GET_SIZE(args) == 0) raise(PyExc_IndexError, "tuple index out of range");
    const Ref mapped = map_tuple(instruction, args);
    value = Ref::borrow(PyTuple_GET_ITEM(mapped.get(), 0));
  } else if (instruction.kind == Kind::kLoad) {
    value = load(instruction);
  } else {
    const Ref positional = map_tuple(instruction, args);
    const Ref keywords = map_dict(instruction, kwargs);
    switch (instruction.kind) {
      case Kind::kEnter:
        out = plan_.enters[instruction.detail].result;
        next = plan_.enters[instruction.detail].skip;
        [[fallthrough]];
      case Kind::kModule:
        value = call_module(instruction, positional.get(), keywords.get());
        break;
      case Kind::kMethod:
        value = call_method(instruction, positional.get(), keywords.get());
        break;
      default:
        value =
            call(instruction, guard_of(instruction).target.get(), positional.get(), keywords.get());
    }
  }
  drop_last(instruction);
  if (instruction.kind == Kind::kEnter) {
    for (const uint32_t slot : plan_.enters[instruction.detail].dying) drop(slots_[slot]);
  }
  if (instruction.kind == Kind::kOutput) {
    result_ = std::move(value);
    done_ = true;
  } else if (out != kNone) {
    Slot& slot = slots_[out];
    store_object(slot, std::move(value));
  }
  ip_ = next;
}

Ref Run::call(const Instruction& instruction, PyObject* callee, PyObject* args, PyObject* kwargs) {
  const Ref living = living_callee(callee);
  if (!meta_) return Ref::steal(PyObject_Call(living.get(), args, kwargs));
  const Ref none = kwargs == nullptr ? Ref::steal(PyDict_New()) : Ref::borrow(kwargs);
  return cpython::call(symbols.call_with_meta, guard_of(instruction).node, living, args, none);
}

Ref Run::call_module(const Instruction& instruction, PyObject* args, PyObject* kwargs) {
  const Ref module = load(instruction);
  PyObject* callee = module.get();
  // A kCounting dispatcher reads CallCounters. A kDispatcher reads an attribute that is set below.
  const bool dispatches = forward_of(Py_TYPE(callee)) == Forward::kDispatcher;
  const int64_t index = dispatches ? scope_->next(callee) : -1;
  if (index < 0) return call(instruction, callee, args, kwargs);
  // During the call, the attribute contains the count of this run.
  struct Count {
    CallCounters& scope;
    PyObject* dispatcher;
    int64_t index;
    int64_t stored = stored_call(dispatcher);
    ~Count() {
      const pybind11::error_scope kept;
      try {
        const int64_t counted = stored_call(dispatcher);
        if (counted != index) scope.set(dispatcher, counted);
        store_call(dispatcher, stored);
      } catch (const pybind11::error_already_set&) {
        PyErr_Clear();
      }
    }
  } count{*scope_, callee, index};
  store_call(callee, index);
  return call(instruction, callee, args, kwargs);
}

Ref Run::call_method(const Instruction& instruction, PyObject* args, PyObject* kwargs) {
  const Py_ssize_t size = PyTuple_GET_SIZE(args);
  if (size == 0) {
    raise(PyExc_ValueError, "not enough values to unpack (expected at least 1, got 0)");
  }
  const Ref tail = Ref::steal(PyTuple_GetSlice(args, 1, size));
  PyObject* target = guard_of(instruction).target.get();
  const Ref method = Ref::steal(PyObject_GetAttr(PyTuple_GET_ITEM(args, 0), target));
  return call(instruction, method.get(), tail.get(), kwargs);
}

Ref Run::load(const Instruction& instruction) {
  const Ref args =
      Ref::steal(PyTuple_Pack(2, module_of(instruction.frame), guard_of(instruction).target.get()));
  return call(instruction, symbols.fetch_attr, args.get(), nullptr);
}

Ref Run::value_of(const Instruction& instruction, PyObject* node) {
  // Most nodes are requested in the order of the instruction's uses.
  const uint32_t count = instruction.uses_end - instruction.uses_begin;
  for (uint32_t i = 0; i < count; ++i, ++hint_) {
    const Use& use = plan_.uses[instruction.uses_begin + hint_ % count];
    if (use.node != node) continue;
    if (use.slot == kNone || slots_[use.slot].state == State::kEmpty) break;
    return to_object(slots_[use.slot]);
  }
  raise(PyExc_RuntimeError,
        "Node %S referenced nonexistent value %S! Run Graph.lint() to diagnose such issues",
        guard_of(instruction).node.get(), node);
}

// Returns `argument` with nodes replaced by their values.
Ref Run::map(const Instruction& instruction, PyObject* argument) {
  fx::ArgMapper mapper;
  std::vector<Ref> values;  // owns the values: the lambda must return borrowed references
  return mapper.map(argument, [&](PyObject* node) {
    values.push_back(value_of(instruction, node));
    return values.back().get();
  });
}

Ref Run::map_tuple(const Instruction& instruction, PyObject* args) {
  return make_tuple(static_cast<size_t>(PyTuple_GET_SIZE(args)), [&](size_t i) {
    return map(instruction, PyTuple_GET_ITEM(args, static_cast<Py_ssize_t>(i)));
  });
}

// Returns `kwargs` with nodes replaced by their values; an empty Ref if there are none.
Ref Run::map_dict(const Instruction& instruction, PyObject* kwargs) {
  if (PyDict_GET_SIZE(kwargs) == 0) return Ref();
  Ref mapped = Ref::steal(PyDict_New());
  for (DictItems items(kwargs); items.next();) {
    const Ref item = map(instruction, items.value());
    check(PyDict_SetItem(mapped.get(), items.key(), item.get()));
  }
  return mapped;
}

}  // namespace fxpress::engine
