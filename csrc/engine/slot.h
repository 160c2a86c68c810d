// Values of a run.
#pragma once

#include <ATen/core/ivalue.h>

#include <cstdint>

#include "engine/symbols.h"

namespace fxpress::engine {

enum class State : uint8_t {
  kEmpty,    // not set yet, or freed
  kNative,   // `value`: operators may be called with it through the dispatcher
  kForeign,  // `value`, in which some tensor wants the Python call: a subclass, a named tensor
  kObject,   // `object`: any other thing of Python
};

// One value. The run that owns it takes the GIL before it drops an `object`.
struct Slot {
  c10::IValue value;           // for kNative and kForeign
  PyObject* object = nullptr;  // owned, for kObject
  State state = State::kEmpty;
};

// Whether operators treat the tensor as a plain one: its Python object, if there is one, is exactly
// a Tensor or a Parameter, and nothing asks for the Python key. Needs no GIL: a tensor keeps its
// object alive.
bool is_plain(const at::Tensor& tensor);

// kNative or kForeign for a value that an operator has returned.
State classify(const c10::IValue& value);

// Whether Python may change it: every mention of it must be the same object then.
bool is_mutable(const c10::IValue& value);

// Stores an object; tensors, None and numbers become native. The slot must be empty.
void store_object(Slot& slot, Ref object);

// Stores the result of an operator, without the GIL. The slot must be empty.
inline void store_value(Slot& slot, c10::IValue&& value) {
  slot.state = value.isTensor() && value.toTensor().defined()
                   ? (is_plain(value.toTensor()) ? State::kNative : State::kForeign)
                   : classify(value);
  // An undefined tensor is None in Python, and that is what later operators must see.
  if (value.isTensor() && !value.toTensor().defined()) value = c10::IValue();
  slot.value = std::move(value);
}

// The value for Python. Containers stay the same object from now on: Python may change them.
Ref to_object(Slot& slot);

}  // namespace fxpress::engine
