// Creates the same fake tensors as FakeTensor's constructor, without running its Python code.
#pragma once

#include "py/object.h"

namespace fxpress::fx {

// Creates the fake tensors of one FakeTensorMode on one device.
class FakeMaker {
 public:
  // device: a torch.device. attributes: a dict of the attributes that all these fake tensors have.
  FakeMaker(PyObject* device, Ref attributes);

  // Creates a fake tensor that shares the storage of `real`, a tensor on the meta device.
  Ref make(PyObject* real, bool requires_grad) const;

  // Creates a fake tensor with the class, sizes, strides, offset, dtype, device and requires_grad
  // of `fake`. storage: its storage; null for a new storage of the same size as the storage of
  // `fake`. Returns an empty Ref if the extension module _aten is not available.
  Ref like(PyObject* fake, PyObject* storage) const;

 private:
  void set_attributes(PyObject* fake) const;

  Ref device_;
  Ref attributes_;
  bool protects_;  // whether access to the data of a created tensor is an error
};

}  // namespace fxpress::fx
