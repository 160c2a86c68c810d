// Reads and makes what a tensor is without its data: sizes, strides, type, how autograd sees it.
#pragma once

#include <ATen/ATen.h>

#include <optional>

#include "core/tensor_access.h"

namespace fxpress::tensor {

// core::ReadTensorFacts and core::FakeLike, which are described there.
bool read_facts(void* tensor, core::TensorFacts* facts);
void* fake_like(void* fake, void* storage, bool protects);

// A tensor on the meta device with the sizes, strides and offset of `pattern`, which may be
// symbolic: nothing is computed of them. `storage`: where it lies; none: in a new one, as large as
// the pattern's.
at::Tensor like_pattern(const at::Tensor& pattern, const std::optional<at::Storage>& storage);

// Makes autograd see a tensor as it sees another: as the result of the same function, or as a leaf
// that requires a gradient if the other is one.
void share_gradient_edge(const at::Tensor& made, const at::Tensor& like);

}  // namespace fxpress::tensor
