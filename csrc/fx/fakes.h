// Makes fake tensors as FakeTensor's constructor makes them, without its Python code.
#pragma once

#include "py/object.h"

namespace fxpress::fx {

// Makes the fake tensors of one mode that stand for tensors on one device.
class FakeMaker {
 public:
  //   device: torch.device.
  //   attributes: dict: those of all fake tensors of the mode on that device.
  FakeMaker(PyObject* device, Ref attributes);

  // A fake tensor in the storage of `real`, a tensor on the meta device.
  Ref make(PyObject* real, bool requires_grad) const;

  // Another fake tensor with the class, the sizes, strides and offset, the dtype, the device and
  // requires_grad of `fake`, in a storage; null stands for a new one of the same size. An empty Ref
  // where the part with libtorch is not to be had.
  Ref like(PyObject* fake, PyObject* storage) const;

 private:
  void give_attributes(PyObject* fake) const;

  Ref device_;
  Ref attributes_;
  bool protects_;  // whether asking for the data of these tensors is an error
};

}  // namespace fxpress::fx
