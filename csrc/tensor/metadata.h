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
// evaluated. storage: of the result; nullopt for a new storage as large as the pattern's.
at::Tensor like_pattern(const at::Tensor& pattern, const std::optional<at::Storage>& storage);

// Like fake_like(), for a fake tensor with symbolic sizes, strides or offset. The copy gets the
// sizes, strides and offset that are passed, which must equal the numbers of `fake`, keeps what
// torch knows about the layout of `fake`, and computes its number of elements again. bytes: the
// size of a new storage, if `storage` is nullopt.
PyObject* fake_with_numbers(PyObject* fake, const std::optional<at::Storage>& storage,
                            const c10::SymInt& bytes, const std::vector<c10::SymInt>& sizes,
                            const std::vector<c10::SymInt>& strides, const c10::SymInt& offset,
                            bool protects);

// Makes `made` a result of the autograd function of which `like` is a result, or, if `like` is a
// leaf, a leaf with the requires_grad of `like`.
void share_gradient_edge(const at::Tensor& made, const at::Tensor& like);

}  // namespace fxpress::tensor
