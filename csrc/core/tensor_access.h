// Defines the types of functions that read and create tensors, which the extension module _aten,
// linked to libtorch, exports in capsules to the module _native, which is not linked to it.
#pragma once

#include <cstddef>
#include <cstdint>

namespace fxpress::core {

struct TensorFacts {
  const int64_t* sizes;    // `dims` sizes; valid as long as the tensor is not changed
  const int64_t* strides;  // `dims` strides, in elements; valid as long as `sizes`
  size_t dims;             // number of dimensions
  int64_t storage_offset;  // in elements
  void* dtype;             // PyObject*: a torch.dtype, borrowed
  bool requires_grad;      // requires_grad of the tensor itself
};

// Fills in the facts of a tensor (a PyObject*). Returns false for tensors that are not strided or
// whose sizes are symbolic. Requires the GIL; runs no Python code.
using ReadTensorFacts = bool (*)(void* tensor, TensorFacts* facts);

// The name of the capsule with a ReadTensorFacts.
inline constexpr const char* kTensorFactsCapsule = "fxpress.tensor_facts.1";

// Returns a new fake tensor (a PyObject*) without attributes. It has the class, sizes, strides,
// offset, dtype, device and requires_grad of `fake`, and uses `storage`, a torch.UntypedStorage;
// null means a new storage of the size of `fake`'s storage. With `protects`, access to the data of
// the result is an error. Returns null with an error set. Requires the GIL.
using FakeLike = void* (*)(void* fake, void* storage, bool protects);

// The name of the capsule with a FakeLike.
inline constexpr const char* kFakeLikeCapsule = "fxpress.fake_like.2";

}  // namespace fxpress::core
