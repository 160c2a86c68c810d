// Creates fake tensors like FakeTensor's constructor, without its Python code.
#pragma once

#include "py/object.h"

namespace fxpress::fx {

// Creates the fake tensors of one mode for one device.
class FakeMaker {
 public:
  //   device: torch.device.
  //   attributes: dict of the attributes of all fake tensors of the mode on that device.
  FakeMaker(PyObject* device, Ref attributes);

  // Creates a fake tensor in the storage of `real`, a tensor on the meta device.
  Ref make(PyObject* real, bool requires_grad) const;

  // Creates a fake tensor in `storage` with the class, sizes, strides, offset, dtype, device and
  // requires_grad of `fake`. A null `storage` means a new storage of the size of the storage of
  // `fake`. Returns an empty Ref when the extension _aten is not available.
  Ref like(PyObject* fake, PyObject* storage) const;

 private:
  void set_attributes(PyObject* fake) const;

  Ref device_;
  Ref attributes_;
  bool protects_;  // whether access to the data of the created tensors is an error
};

}  // namespace fxpress::fx
