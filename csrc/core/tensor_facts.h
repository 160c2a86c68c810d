// The facts about a tensor that the module with libtorch reads for the module without it: a plain
// struct and a function.
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

}  // namespace fxpress::core
