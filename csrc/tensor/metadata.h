// Reads and copies the metadata of tensors: sizes, strides, dtype, gradient edge.
#pragma once

#include <ATen/ATen.h>

#include <optional>

#include "core/tensor_access.h"

namespace fxpress::tensor {

// Implement core::ReadTensorFacts and core::FakeLike, see there.
bool read_facts(void* tensor, core::TensorFacts* facts);
void* fake_like(void* fake, void* storage, bool protects);

// A tensor on the meta device with the sizes, strides and offset of `pattern`. They may be
// symbolic, and are not evaluated. `storage`: its storage; nullopt: a new one, as large as the
// pattern's.
at::Tensor like_pattern(const at::Tensor& pattern, const std::optional<at::Storage>& storage);

// Makes a tensor the result of the same autograd function as `like`, or a leaf with the same
// requires_grad.
void share_gradient_edge(const at::Tensor& made, const at::Tensor& like);

}  // namespace fxpress::tensor
