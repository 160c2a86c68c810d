// Reads and copies the metadata of tensors: sizes, strides, dtype, gradient edge.
#pragma once

#include <ATen/ATen.h>
#include <torch/csrc/python_headers.h>

#include <optional>
#include <vector>

#include "core/tensor_access.h"

namespace fxpress::tensor {

// read_facts() implements core::ReadTensorFacts, and fake_like() core::FakeLike.
bool read_facts(void* tensor, core::TensorFacts* facts);
void* fake_like(void* fake, void* storage, bool protects);

// Returns a meta tensor with the sizes, strides and offset of `pattern`. Symbolic numbers are not
// evaluated. If `storage` is nullopt, creates a storage as large as the storage of `pattern`.
at::Tensor like_pattern(const at::Tensor& pattern, const std::optional<at::Storage>& storage);

// Like fake_like(), for a fake tensor with symbolic sizes, strides or offset. The copy gets
// `sizes`, `strides` and `offset`, which must equal the numbers of `fake`. It keeps torch's cached
// facts about the layout of `fake`, except the number of elements, which is computed again. bytes:
// the size of a new storage, if `storage` is nullopt.
PyObject* fake_with_numbers(PyObject* fake, const std::optional<at::Storage>& storage,
                            const c10::SymInt& bytes, const std::vector<c10::SymInt>& sizes,
                            const std::vector<c10::SymInt>& strides, const c10::SymInt& offset,
                            bool protects);

// Gives `made` the grad_fn and the output number of `like`. If `like` is a leaf, `made` becomes a
// leaf with the same requires_grad.
void share_gradient_edge(const at::Tensor& made, const at::Tensor& like);

}  // namespace fxpress::tensor
