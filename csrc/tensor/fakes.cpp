#include "tensor/fakes.h"

#include <c10/core/impl/LocalDispatchKeySet.h>
#include <torch/csrc/DynamicTypes.h>
#include <torch/csrc/Exceptions.h>
#include <torch/csrc/autograd/python_variable.h>

#include "tensor/pattern.h"

namespace fxpress::tensor {

namespace {

// Made as by Tensor._make_subclass: Python answers for operators and for the device.
at::Tensor copy_of(PyObject* object, PyObject* storage, bool protects) {
  const at::Tensor& fake = THPVariable_Unpack(object);
  std::optional<at::Storage> place;
  if (storage != nullptr) place = torch::createStorage(storage);
  // A copy of the tensor without Python is asked for, not a call of its class or of a mode.
  const c10::impl::ExcludeDispatchKeyGuard no_python(c10::python_ks);
  at::Tensor made = like_pattern(fake, place);
  made.set_requires_grad(fake.requires_grad());
  made.unsafeGetTensorImpl()->set_python_dispatch(true);
  made.unsafeGetTensorImpl()->set_python_custom_device(true);
  if (protects) made.storage().unsafeGetStorageImpl()->set_throw_on_mutable_data_ptr();
  return made;
}

}  // namespace

void* fake_like(void* fake, void* storage, bool protects) {
  HANDLE_TH_ERRORS
  auto* like = static_cast<PyObject*>(fake);
  const at::Tensor made = copy_of(like, static_cast<PyObject*>(storage), protects);
  return THPVariable_Wrap(made, Py_TYPE(like));
  END_HANDLE_TH_ERRORS
}

}  // namespace fxpress::tensor
