#include <algorithm>
#include <utility>

#include "engine/builder.h"

namespace fxpress::engine {

// Replaces values by slots in all instructions. Values that are not live at the same time share a
// slot, so that a run needs few slots.
void Builder::assign_slots() {
  find_last_uses();
  find_dying();
  std::vector<uint32_t> slots(values_.size(), kNone);
  std::vector<uint32_t> free;
  uint32_t count = 0;
  const auto take = [&](uint32_t value) {
    if (!values_[value].fixed && !free.empty()) {
      slots[value] = free.back();
      free.pop_back();
    } else {
      slots[value] = count++;
    }
    return slots[value];
  };
  const auto read = [&](uint32_t& value) {
    if (value != kNone) value = slots[value];
  };
  const auto used = [&](uint32_t value) { return values_[value].last_use != kNone; };

  for (Placeholder& placeholder : plan_->placeholders) {
    placeholder.slot = used(placeholder.slot) ? take(placeholder.slot) : kNone;
  }
  for (uint32_t index = 0; index < plan_->instructions.size(); ++index) {
    Instruction& instruction = plan_->instructions[index];
    mark_moves(instruction);
    if (instruction.kind == Kind::kBoxed) {
      const BoxedCall& call = plan_->boxed[instruction.detail];
      for (uint32_t i = call.begin; i < call.end; ++i) {
        Argument& argument = plan_->arguments[i];
        if (argument.form == Argument::Form::kSlot) read(argument.index);
        if (argument.form != Argument::Form::kList) continue;
        for (Element& element : plan_->lists[argument.index].elements) read(element.slot);
      }
    } else if (instruction.kind == Kind::kLeave && instruction.detail != kNone) {
      for (Element& element : plan_->lists[instruction.detail].elements) read(element.slot);
    } else if (instruction.kind == Kind::kGetItem) {
      read(plan_->items[instruction.detail].slot);
    } else if (instruction.kind == Kind::kInt) {
      for (uint32_t& slot : plan_->ints[instruction.detail].slot) read(slot);
    }
    for (uint32_t i = instruction.uses_begin; i < instruction.uses_end; ++i) {
      Use& use = plan_->uses[i];
      if (use.slot == kNone) continue;
      const bool fixed = values_[use.slot].fixed;
      read(use.slot);
      if (use.last && !fixed) free.push_back(use.slot);
    }
    if (instruction.out != kNone) {
      instruction.out = used(instruction.out) ? take(instruction.out) : kNone;
    }
    if (instruction.kind == Kind::kLeave) {
      plan_->enters[frame_enters_[instruction.frame]].result = instruction.out;
    } else if (instruction.kind == Kind::kPass) {
      const bool read_later = values_[instruction.detail].last_use > index;
      plan_->enters[frame_enters_[instruction.frame]].result =
          read_later ? slots[instruction.detail] : kNone;
    }
  }
  for (Enter& enter : plan_->enters) {
    for (uint32_t& value : enter.dying) read(value);
  }
  plan_->slots = count;
}

void Builder::find_last_uses() {
  for (uint32_t i = 0; i < plan_->instructions.size(); ++i) {
    const Instruction& instruction = plan_->instructions[i];
    for (uint32_t u = instruction.uses_begin; u < instruction.uses_end; ++u) {
      if (plan_->uses[u].slot != kNone) values_[plan_->uses[u].slot].last_use = i;
    }
  }
  // By value: the index of the instruction that frees it.
  std::vector<uint32_t> freed(values_.size(), kNone);
  for (uint32_t i = 0; i < plan_->instructions.size(); ++i) {
    const Instruction& instruction = plan_->instructions[i];
    for (uint32_t u = instruction.uses_begin; u < instruction.uses_end; ++u) {
      Use& use = plan_->uses[u];
      use.last = use.slot != kNone && values_[use.slot].last_use == i;
      // Two inputs of an instruction may be the same value, which must be freed once.
      if (use.last && std::exchange(freed[use.slot], i) == i) use.last = false;
    }
  }
}

// If no later instruction reads a value, marks the value's last occurrence in the arguments of this
// instruction as `move`. The run then moves the value out of its slot.
void Builder::mark_moves(const Instruction& instruction) {
  std::vector<uint32_t> ending;
  for (uint32_t u = instruction.uses_begin; u < instruction.uses_end; ++u) {
    if (plan_->uses[u].last) ending.push_back(plan_->uses[u].slot);
  }
  const auto take = [&ending](uint32_t value) {
    const auto found = std::find(ending.begin(), ending.end(), value);
    if (value == kNone || found == ending.end()) return false;
    ending.erase(found);
    return true;
  };
  const auto take_from = [&](ListArgument& list) {
    for (size_t e = list.elements.size(); e-- > 0;) {
      list.elements[e].move = take(list.elements[e].slot);
    }
  };
  if (instruction.kind == Kind::kBoxed) {
    const BoxedCall& call = plan_->boxed[instruction.detail];
    for (uint32_t i = call.end; i-- > call.begin;) {
      Argument& argument = plan_->arguments[i];
      if (argument.form == Argument::Form::kSlot) argument.move = take(argument.index);
      if (argument.form == Argument::Form::kList) take_from(plan_->lists[argument.index]);
    }
  } else if (instruction.kind == Kind::kLeave && instruction.detail != kNone) {
    take_from(plan_->lists[instruction.detail]);
  } else if (instruction.kind == Kind::kGetItem) {
    GetItem& item = plan_->items[instruction.detail];
    item.move = take(item.slot);
  }
}

// Sets Enter::dying: the values that are defined before the inlined instructions and last used in
// them. If Python makes the call instead, the run frees these values after the call.
void Builder::find_dying() {
  for (uint32_t value = 0; value < values_.size(); ++value) {
    const Value& known = values_[value];
    if (known.last_use == kNone) continue;
    uint32_t frame = plan_->instructions[known.last_use].frame;
    while (frame != 0) {
      const uint32_t enter = frame_enters_[frame];
      const uint32_t instruction = enter_instructions_[enter];
      if (known.definition != kNone && known.definition > instruction) break;
      plan_->enters[enter].dying.push_back(value);
      frame = plan_->frames[frame].parent;
    }
  }
}

}  // namespace fxpress::engine
