// Defines the types of functions that read and create tensors. The extension module _aten exports
// these functions in Python capsules. _native uses them, because it is not linked to libtorch.
#pragma once

#include <cstddef>
#include <cstdint>

namespace fxpress::core {

struct TensorFacts {
  const int64_t* sizes;    // `dims` sizes; valid until the tensor changes
  const int64_t* strides;  // `dims` strides, in elements; valid until the tensor changes
  size_t dims;             // number of dimensions
  int64_t storage_offset;  // in elements
  void* dtype;             // PyObject*: a torch.dtype, borrowed
  bool requires_grad;
};

// Sets `facts` for a tensor (a PyObject*). Returns false if the tensor is not strided or its sizes
// are symbolic. Requires the GIL; runs no Python code.
using ReadTensorFacts = bool (*)(void* tensor, TensorFacts* facts);

// The name of the capsule that contains a ReadTensorFacts.
inline constexpr const char* kTensorFactsCapsule = "fxpress.tensor_facts.1";

// Returns a new fake tensor (a PyObject*) with the class, sizes, strides, offset, dtype, device and
// requires_grad of `fake`, but without its Python attributes. storage: a torch.UntypedStorage, or
// null for a new storage that is as large as the old one. protects: whether access to the data of
// the result is an error. Returns null with a Python exception set on errors. Requires the GIL.
using FakeLike = void* (*)(void* fake, void* storage, bool protects);

// The name of the capsule that contains a FakeLike.
inline constexpr const char* kFakeLikeCapsule = "fxpress.fake_like.2";

}  // namespace fxpress::core
