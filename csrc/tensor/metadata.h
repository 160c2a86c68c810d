// Reads and copies the metadata of tensors: sizes, strides, dtype, gradient edge.
#pragma once

#include <ATen/ATen.h>
#include <torch/csrc/python_headers.h>

#include <optional>
#include <vector>

#include "core/tensor_access.h"

namespace fxpress::tensor {

// Implement core::ReadTensorFacts and core::FakeLike, see there.
bool read_facts(void* tensor, core::TensorFacts* facts);
void* fake_like(void* fake, void* storage, bool protects);

// Returns a meta tensor with the sizes, strides and offset of `pattern`. Symbolic numbers are not
// evaluated. storage: for the new tensor; nullopt: a new one, as large as the pattern's.
at::Tensor like_pattern(const at::Tensor& pattern, const std::optional<at::Storage>& storage);

// Like fake_like(), for a fake tensor with symbolic sizes, strides or offset. The copy gets the
// numbers that are passed, which must equal the numbers of `fake`. It keeps the known facts about
// the layout; the number of elements is computed again. bytes: the size of a new storage, which
// replaces a missing `storage`.
PyObject* fake_with_numbers(PyObject* fake, const std::optional<at::Storage>& storage,
                            const c10::SymInt& bytes, const std::vector<c10::SymInt>& sizes,
                            const std::vector<c10::SymInt>& strides, const c10::SymInt& offset,
                            bool protects);

// Makes a tensor the result of the same autograd function as `like`, or a leaf with the same
// requires_grad.
void share_gradient_edge(const at::Tensor& made, const at::Tensor& like);

}  // namespace fxpress::tensor
