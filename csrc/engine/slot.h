// Stores the values of a run.
#pragma once

#include <ATen/core/ivalue.h>

#include <cstdint>

#include "engine/symbols.h"

namespace fxpress::engine {

enum class State : uint8_t {
  kEmpty,    // not set yet, or freed
  kNative,   // `value`, which operators accept through the dispatcher
  kForeign,  // `value`, with a tensor that needs a call from Python, such as a subclass
  kObject,   // `object`, any other Python object
};

// A value of a run. The run acquires the GIL before it drops an `object`.
struct Slot {
  c10::IValue value;           // used by kNative and kForeign
  PyObject* object = nullptr;  // used by kObject; owned
  State state = State::kEmpty;
};

// Returns whether operators treat the tensor as plain: its Python object, if any, has exactly the
// type Tensor or Parameter, and the tensor lacks the Python dispatch key. Does not require the GIL,
// because a tensor keeps its object alive.
bool is_plain(const at::Tensor& tensor);

// Returns the state for an operator's result: kNative or kForeign.
State classify(const c10::IValue& value);

// Returns whether Python code may change the value. If so, all its uses must get the same object.
bool is_mutable(const c10::IValue& value);

// Stores an object in an empty slot. Plain tensors, None, bools, floats and ints of at most 64 bits
// become kNative. All other objects become kObject.
void store_object(Slot& slot, Ref object);

// Stores the result of an operator in an empty slot. Does not require the GIL.
inline void store_value(Slot& slot, c10::IValue&& value) {
  slot.state = value.isTensor() && value.toTensor().defined()
                   ? (is_plain(value.toTensor()) ? State::kNative : State::kForeign)
                   : classify(value);
  // Python converts an undefined tensor to None, so later operators must receive None.
  if (value.isTensor() && !value.toTensor().defined()) value = c10::IValue();
  slot.value = std::move(value);
}

// Returns the value as a Python object. A list or dict, which Python code may change, is converted
// once, and the slot keeps the object.
Ref to_object(Slot& slot);

}  // namespace fxpress::engine
