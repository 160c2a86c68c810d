#include <ctime>

#include "engine/convert.h"
#include "engine/operators.h"
#include "engine/run.h"

namespace fxpress::engine {

namespace {

// The interval of checks for Ctrl-C.
constexpr int64_t kPollMilliseconds = 40;

// Reads a clock with a resolution of about 4 ms, which takes only a few nanoseconds.
int64_t coarse_milliseconds() {
#ifdef CLOCK_MONOTONIC_COARSE
  constexpr clockid_t kClock = CLOCK_MONOTONIC_COARSE;
#else
  constexpr clockid_t kClock = CLOCK_MONOTONIC;
#endif
  timespec now{};
  clock_gettime(kClock, &now);
  return int64_t{now.tv_sec} * 1000 + now.tv_nsec / 1'000'000;
}

bool fits(const c10::IValue& value, Expect expect, bool optional) {
  if (optional && value.isNone()) return true;
  switch (expect) {
    case Expect::kTensor:
      return value.isTensor();
    case Expect::kInt:
      return value.isInt();
    case Expect::kFloat:
      return value.isDouble();
    case Expect::kBool:
      return value.isBool();
    case Expect::kNumber:
      return value.isInt() || value.isDouble() || value.isBool();
    case Expect::kTensorList:
      return value.isTensorList();
    case Expect::kIntList:
      return value.isIntList();
    case Expect::kNothing:
      break;
  }
  return false;
}

// Computes Python's a // b and a % b. Returns false if Python raises or a result exceeds 64 bits.
bool floor_divide(int64_t a, int64_t b, int64_t& quotient, int64_t& remainder) {
  if (b == 0 || (a == INT64_MIN && b == -1)) return false;
  quotient = a / b;
  remainder = a % b;
  if (remainder != 0 && ((remainder < 0) != (b < 0))) {
    --quotient;
    remainder += b;
  }
  return true;
}

}  // namespace

// Executes instructions before `limit`. Stops before an instruction that needs Python (`blocked_`),
// and after an instruction that may have run Python code. May release the GIL.
void Run::native(uint32_t limit) {
  while (ip_ < limit) {
    const Instruction& instruction = plan_.instructions[ip_];
    if (!execute_native(instruction)) {
      blocked_ = true;
      return;
    }
    if (instruction.kind == Kind::kBoxed && (++ticks_ & 3) == 0 && overdue()) {
      acquire();
      check(PyErr_CheckSignals());  // a signal handler's exception names this instruction's node
      ran_python_ = true;
    }
    ++ip_;
    if (ran_python_) return;
  }
}

bool Run::overdue() {
  const int64_t now = coarse_milliseconds();
  if (now - polled_ < kPollMilliseconds) return false;
  return std::exchange(polled_, now) != 0;
}

bool Run::execute_native(const Instruction& instruction) {
  switch (instruction.kind) {
    case Kind::kLoad:
    case Kind::kConstant:
      return true;
    case Kind::kEnter:
      enter(instruction);
      return true;
    case Kind::kLeave:
      return leave(instruction);
    case Kind::kPass:
      drop_last(instruction);
      return true;
    case Kind::kBoxed:
      return boxed(instruction);
    case Kind::kGetItem:
      return get_item(instruction);
    case Kind::kInt:
      return compute(instruction);
    default:
      return false;
  }
}

// Frees each value whose last use is this instruction.
void Run::drop_last(const Instruction& instruction) {
  for (uint32_t i = instruction.uses_begin; i < instruction.uses_end; ++i) {
    const Use& use = plan_.uses[i];
    if (use.last) drop(slots_[use.slot]);
  }
}

void Run::enter(const Instruction& instruction) {
  drop_last(instruction);  // frees the arguments that nothing reads later
  const Enter& enter = plan_.enters[instruction.detail];
  if (enter.dispatcher != kNone) {
    scope_->set(plan_.modules[enter.dispatcher].module.get(),
                (enter.call_index + 1) % enter.call_count);
  }
}

bool Run::leave(const Instruction& instruction) {
  const ListArgument& list = plan_.lists[instruction.detail];
  if (list.element != Expect::kNothing) {  // a single value, not a tuple
    const Element& only = list.elements[0];
    if (only.slot == kNone) return false;
    Slot& from = slots_[only.slot];
    if (only.slot == instruction.out) return true;
    if (instruction.out != kNone) {
      Slot& to = slots_[instruction.out];
      if (only.move) {
        std::swap(from, to);
      } else if (from.state == State::kObject || is_mutable(from.value)) {
        acquire();
        to.object = to_object(from).release();
        to.state = State::kObject;
      } else {
        to.value = from.value;
        to.state = from.state;
      }
    }
    if (only.move) drop(from);
    return true;
  }
  for (const Element& element : list.elements) {
    if (element.slot == kNone) return false;
    const Slot& slot = slots_[element.slot];
    if (slot.state != State::kNative && slot.state != State::kForeign) return false;
    if (is_mutable(slot.value)) return false;
  }
  std::vector<c10::IValue> items;
  items.reserve(list.elements.size());
  for (const Element& element : list.elements) {
    Slot& slot = slots_[element.slot];
    items.push_back(slot.value);
    if (element.move) drop(slot);
  }
  if (instruction.out != kNone) {
    store_value(slots_[instruction.out], c10::ivalue::Tuple::create(std::move(items)));
  }
  return true;
}

bool Run::boxed(const Instruction& instruction) {
  const BoxedCall& call = plan_.boxed[instruction.detail];
  const Argument* const begin = plan_.arguments.data() + call.begin;
  const Argument* const end = plan_.arguments.data() + call.end;
  for (const Argument* argument = begin; argument != end; ++argument) {
    if (argument->form == Argument::Form::kSlot) {
      const Slot& slot = slots_[argument->index];
      if (slot.state != State::kNative) return false;
      if (!fits(slot.value, argument->expect, argument->optional)) return false;
    } else if (argument->form == Argument::Form::kList) {
      const ListArgument& list = plan_.lists[argument->index];
      for (const Element& element : list.elements) {
        if (element.slot == kNone) continue;
        const Slot& slot = slots_[element.slot];
        if (slot.state != State::kNative) return false;
        if (!fits(slot.value, list.element, list.optional)) return false;
      }
    }
  }

  release();
  // Another thread may have destroyed the operator's library before this call. (As in torch, it may
  // also do so during the call.) Other removed operators do not matter: at exit, Python destroys
  // its libraries while threads still run, and these threads must not wait for Python.
  if (has_gone(call.op, plan_.operators)) return false;
  stack_.clear();
  for (const Argument* argument = begin; argument != end; ++argument) {
    switch (argument->form) {
      case Argument::Form::kConstant:
        stack_.push_back(plan_.constants[argument->index]);
        break;
      case Argument::Form::kSlot: {
        Slot& slot = slots_[argument->index];
        if (argument->move) {
          stack_.push_back(std::move(slot.value));
          slot.state = State::kEmpty;
        } else {
          stack_.push_back(slot.value);
        }
        break;
      }
      case Argument::Form::kList:
        push_list(plan_.lists[argument->index]);
        break;
    }
  }
  if (call.numbers) {
    call_with_numbers(call.op, stack_);
  } else {
    call.op.callBoxed(stack_);
  }
  if (instruction.out != kNone) {
    Slot& out = slots_[instruction.out];
    if (stack_.size() == 1) {
      store_value(out, std::move(stack_.back()));
    } else if (stack_.empty()) {
      out.state = State::kNative;  // None
    } else {
      store_value(out, c10::ivalue::Tuple::create(
                           std::vector<c10::IValue>(std::make_move_iterator(stack_.begin()),
                                                    std::make_move_iterator(stack_.end()))));
    }
  }
  stack_.clear();
  return true;
}

void Run::push_list(const ListArgument& list) {
  const auto fill = [&](auto made, const auto& convert) {
    made.reserve(list.elements.size());
    for (const Element& element : list.elements) {
      if (element.slot == kNone) {
        made.push_back(convert(element.constant));
        continue;
      }
      Slot& slot = slots_[element.slot];
      made.push_back(convert(slot.value));
      if (element.move) drop(slot);
    }
    stack_.emplace_back(std::move(made));
  };
  if (list.element == Expect::kInt) {
    fill(c10::List<int64_t>(), [](const c10::IValue& item) { return item.toInt(); });
  } else if (list.optional) {
    fill(c10::List<std::optional<at::Tensor>>(), [](const c10::IValue& item) {
      return item.isNone() ? std::optional<at::Tensor>() : std::optional(item.toTensor());
    });
  } else {
    fill(c10::List<at::Tensor>(), [](const c10::IValue& item) { return item.toTensor(); });
  }
}

bool Run::get_item(const Instruction& instruction) {
  const GetItem& item = plan_.items[instruction.detail];
  Slot& container = slots_[item.slot];
  if (container.state != State::kNative && container.state != State::kForeign) return false;
  const auto index_in = [&](size_t size) {
    const int64_t index = item.index < 0 ? item.index + static_cast<int64_t>(size) : item.index;
    const bool is_valid = 0 <= index && index < static_cast<int64_t>(size);
    return is_valid ? std::optional(static_cast<size_t>(index)) : std::nullopt;
  };
  c10::IValue value;
  if (container.value.isTuple()) {
    const auto& elements = container.value.toTupleRef().elements();
    const std::optional<size_t> index = index_in(elements.size());
    if (!index) return false;
    value = elements[*index];
    if (is_mutable(value)) return false;
  } else if (container.value.isTensorList()) {
    const auto elements = container.value.toTensorList();
    const std::optional<size_t> index = index_in(elements.size());
    if (!index) return false;
    value = elements.get(*index);
  } else {
    return false;
  }
  if (item.move) drop(container);
  if (instruction.out != kNone) store_value(slots_[instruction.out], std::move(value));
  return true;
}

bool Run::compute(const Instruction& instruction) {
  const IntCall& call = plan_.ints[instruction.detail];
  int64_t operands[2];
  for (int i = 0; i < 2; ++i) {
    operands[i] = call.constant[i];
    if (call.slot[i] == kNone) continue;
    const Slot& slot = slots_[call.slot[i]];
    if (slot.state != State::kNative || !slot.value.isInt()) return false;
    operands[i] = slot.value.toInt();
  }
  const auto [a, b] = operands;
  int64_t number = 0, other = 0;
  c10::IValue value;
  switch (call.op) {
    case IntOp::kAdd:
      if (__builtin_add_overflow(a, b, &number)) return false;
      value = number;
      break;
    case IntOp::kSub:
      if (__builtin_sub_overflow(a, b, &number)) return false;
      value = number;
      break;
    case IntOp::kMul:
      if (__builtin_mul_overflow(a, b, &number)) return false;
      value = number;
      break;
    case IntOp::kFloorDiv:
      if (!floor_divide(a, b, number, other)) return false;
      value = number;
      break;
    case IntOp::kMod:
      if (!floor_divide(a, b, other, number)) return false;
      value = number;
      break;
    case IntOp::kEq:
      value = a == b;
      break;
    case IntOp::kNe:
      value = a != b;
      break;
    case IntOp::kLt:
      value = a < b;
      break;
    case IntOp::kLe:
      value = a <= b;
      break;
    case IntOp::kGt:
      value = a > b;
      break;
    case IntOp::kGe:
      value = a >= b;
      break;
  }
  drop_last(instruction);
  if (instruction.out != kNone) store_value(slots_[instruction.out], std::move(value));
  return true;
}

}  // namespace fxpress::engine
