// How the module without libtorch reads and makes tensors: functions of the module with libtorch,
// which capsules carry from one to the other.
#pragma once

#include <cstddef>
#include <cstdint>

namespace fxpress::core {

struct TensorFacts {
  const int64_t* sizes;    // valid as long as the tensor is not changed, `dims` of them
  const int64_t* strides;  // likewise, in elements
  size_t dims;             // number of dimensions
  int64_t storage_offset;  // in elements
  void* dtype;             // PyObject*: a torch.dtype, borrowed
  bool requires_grad;      // of the tensor itself
};

// Fills in the facts of a tensor (a PyObject*). False for tensors that are not strided or whose
// sizes are symbolic. Needs the GIL, calls no Python code.
using ReadTensorFacts = bool (*)(void* tensor, TensorFacts* facts);

// The name of the capsule that carries it from one module to the other.
inline constexpr const char* kTensorFactsCapsule = "fxpress.tensor_facts.1";

// Returns a new fake tensor (a PyObject*), without attributes: its class, sizes, strides, offset,
// dtype, device and requires_grad are those of `fake`, its data lie in `storage`, a
// torch.UntypedStorage; asking for them is an error where it `protects` them. A null storage stands
// for a new one of the same size. Null with an error set. Needs the GIL.
using FakeLike = void* (*)(void* fake, void* storage, bool protects);

// The name of the capsule that carries it from one module to the other.
inline constexpr const char* kFakeLikeCapsule = "fxpress.fake_like.2";

}  // namespace fxpress::core
