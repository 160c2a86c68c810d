// Makes fake tensors as FakeTensor's constructor makes them, without its Python code.
#pragma once

#include "py/object.h"

namespace fxpress::fx {

// A fake tensor that stands for one on a device.
//   real: a tensor on the meta device, whose storage it shares.
//   attributes: dict: those of all fake tensors of its mode on that device.
Ref make_fake(PyObject* real, bool requires_grad, PyObject* device, PyObject* attributes);

// Another fake tensor with the class, the sizes, strides and offset, the dtype, the device and
// requires_grad of `fake`, in a storage; null stands for a new one of the same size. An empty Ref
// where the part with libtorch is not to be had.
Ref fake_like(PyObject* fake, PyObject* storage, PyObject* attributes);

}  // namespace fxpress::fx
