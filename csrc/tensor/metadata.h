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

// A tensor on the meta device with the sizes, strides and offset of `pattern`. They may be
// symbolic, and are not evaluated. `storage`: its storage; nullopt: a new one, as large as the
// pattern's.
at::Tensor like_pattern(const at::Tensor& pattern, const std::optional<at::Storage>& storage);

// Like fake_like(), with other numbers equal to the numbers of `fake`, which has symbolic sizes,
// strides or offset. Facts about its layout that are known already are kept, except the number of
// elements, which is a separate symbolic number for each tensor. `bytes`: of a new storage, if
// there is no storage.
PyObject* fake_with_numbers(PyObject* fake, const std::optional<at::Storage>& storage,
                            const c10::SymInt& bytes, const std::vector<c10::SymInt>& sizes,
                            const std::vector<c10::SymInt>& strides, const c10::SymInt& offset,
                            bool protects);

// Makes a tensor the result of the same autograd function as `like`, or a leaf with the same
// requires_grad.
void share_gradient_edge(const at::Tensor& made, const at::Tensor& like);

}  // namespace fxpress::tensor
