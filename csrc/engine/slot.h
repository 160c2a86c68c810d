// Stores the values of a run.
#pragma once

#include <ATen/core/ivalue.h>

#include <cstdint>

#include "engine/symbols.h"

namespace fxpress::engine {

enum class State : uint8_t {
  kEmpty,    // not set yet, or freed
  kNative,   // `value`: operators may be called with it through the dispatcher
  kForeign,  // `value`, which contains a tensor that needs the Python call, such as a subclass
  kObject,   // `object`: any other Python object
};

// One value. The run that owns it acquires the GIL before it drops an `object`.
struct Slot {
  c10::IValue value;           // for kNative and kForeign
  PyObject* object = nullptr;  // owned, for kObject
  State state = State::kEmpty;
};

// Whether operators treat the tensor as a plain tensor: its Python object, if any, is exactly a
// Tensor or a Parameter, and it does not have the Python dispatch key. Does not need the GIL,
// because a tensor keeps its object alive.
bool is_plain(const at::Tensor& tensor);

// The state of an operator's result: kNative or kForeign.
State classify(const c10::IValue& value);

// Whether Python may change the value. If so, all its uses must get the same Python object.
bool is_mutable(const c10::IValue& value);

// Stores an object; tensors, None and numbers become native. The slot must be empty.
void store_object(Slot& slot, Ref object);

// Stores the result of an operator, without the GIL. The slot must be empty.
inline void store_value(Slot& slot, c10::IValue&& value) {
  slot.state = value.isTensor() && value.toTensor().defined()
                   ? (is_plain(value.toTensor()) ? State::kNative : State::kForeign)
                   : classify(value);
  // An undefined tensor is None in Python, so later operators must receive None.
  if (value.isTensor() && !value.toTensor().defined()) value = c10::IValue();
  slot.value = std::move(value);
}

// Returns the value as a Python object. The slot keeps the object of a list or dict, which Python
// may change.
Ref to_object(Slot& slot);

}  // namespace fxpress::engine
