#include "engine/slot.h"

#include <torch/csrc/autograd/python_variable.h>

#include <algorithm>

#include "engine/convert.h"

namespace fxpress::engine {

bool is_plain(const at::Tensor& tensor) {
  const c10::TensorImpl* impl = tensor.unsafeGetTensorImpl();
  if (impl->key_set().has(c10::DispatchKey::Python)) return false;
  PyObject* object = impl->pyobj_slot()->load_pyobj();
  return object == nullptr || THPVariable_CheckExact(object);
}

State classify(const c10::IValue& value) {
  const auto plain = [](const c10::IValue& item) { return classify(item) == State::kNative; };
  if (value.isTensor()) {
    const at::Tensor& tensor = value.toTensor();
    return !tensor.defined() || is_plain(tensor) ? State::kNative : State::kForeign;
  }
  bool native = true;
  if (value.isTensorList()) {
    for (const at::Tensor& tensor : value.toTensorVector()) {
      native = native && tensor.defined() && is_plain(tensor);
    }
  } else if (value.isTuple()) {
    for (const c10::IValue& item : value.toTupleRef().elements()) native = native && plain(item);
  }
  return native ? State::kNative : State::kForeign;
}

bool is_mutable(const c10::IValue& value) {
  if (value.isTuple()) {
    const auto& elements = value.toTupleRef().elements();
    return std::any_of(elements.begin(), elements.end(), is_mutable);
  }
  return value.isList() || value.isGenericDict();
}

void store_object(Slot& slot, Ref object) {
  PyObject* item = object.get();
  slot.state = State::kNative;
  if (THPVariable_CheckExact(item)) {
    const at::Tensor& tensor = THPVariable_Unpack(item);
    if (is_plain(tensor)) {
      slot.value = tensor;
      return;
    }
  } else if (item == Py_None) {
    slot.value = c10::IValue();
    return;
  } else if (PyBool_Check(item)) {
    slot.value = c10::IValue(item == Py_True);
    return;
  } else if (PyFloat_CheckExact(item)) {
    slot.value = c10::IValue(PyFloat_AS_DOUBLE(item));
    return;
  } else if (PyLong_CheckExact(item)) {
    int overflow = 0;
    const long long number = PyLong_AsLongLongAndOverflow(item, &overflow);
    if (overflow == 0) {
      slot.value = c10::IValue(static_cast<int64_t>(number));
      return;
    }
  }
  slot.state = State::kObject;
  slot.object = object.release();
}

Ref to_object(Slot& slot) {
  if (slot.state == State::kObject) return Ref::borrow(slot.object);
  if (slot.value.isTensor()) return Ref::steal(THPVariable_Wrap(slot.value.toTensor()));
  Ref object = value_to_object(slot.value);
  if (slot.value.isPtrType()) {
    slot.state = State::kObject;
    slot.value = c10::IValue();
    slot.object = Ref::borrow(object.get()).release();
  }
  return object;
}

}  // namespace fxpress::engine
