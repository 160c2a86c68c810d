// Reads and copies the metadata of tensors: sizes, strides, dtype, gradient edge.
#pragma once

#include <ATen/ATen.h>
#include <c10/core/SymbolicShapeMeta.h>
#include <torch/csrc/python_headers.h>

#include <optional>
#include <vector>

#include "core/tensor_access.h"

namespace fxpress::tensor {

// read_facts() implements core::ReadTensorFacts. fake_like() implements core::FakeLike.
bool read_facts(void* tensor, core::TensorFacts* facts);
void* fake_like(void* fake, void* storage, bool protects);

// Returns a meta tensor with the sizes, strides and offset of `pattern`. Symbolic numbers are not
// evaluated. If `storage` is nullopt, creates a storage as large as the storage of `pattern`.
at::Tensor like_pattern(const at::Tensor& pattern, const std::optional<at::Storage>& storage);

// The bytes of a new storage for a tensor, and the tensor's sizes, strides and offset.
struct Numbers {
  c10::SymInt bytes;
  std::vector<c10::SymInt> sizes, strides;
  c10::SymInt offset;
};

// Returns a meta tensor in `storage` or, if it is nullopt, in a new storage. Symbolic numbers are
// not evaluated.
at::Tensor make_meta(const Numbers& numbers, at::ScalarType dtype,
                     const std::optional<at::Storage>& storage);

// Returns a copy of a fake tensor, with the storage of `base` if set, else with a new storage. The
// copy gets the gradient edge of `edge`. `numbers` replace the SymInts of `fake`, and must be equal
// to them. The copy keeps the layout facts that torch has cached for `fake`, except the number of
// elements.
PyObject* fake_result(PyObject* fake, const std::optional<at::Tensor>& base,
                      const std::optional<at::Tensor>& edge, const std::optional<Numbers>& numbers,
                      bool protects);

// Returns bits: one for each layout fact, such as is_contiguous, that torch has cached for a tensor
// with symbolic sizes, and kUndecided if one of these facts depends on the values of symbols.
int known_layout(const at::Tensor& tensor);
constexpr int kUndecided = 128;

// The symbolic sizes of a tensor, and the facts about its layout that torch has cached.
class Layout {
 public:
  // Copies the layout of a tensor with symbolic sizes.
  explicit Layout(const at::Tensor& tensor);

  // Gives this layout to a tensor with symbolic sizes. `numbers`: sizes, strides and offset, equal
  // to the layout's numbers. `elements`: the number of elements, used if torch had cached it.
  void give(const at::Tensor& tensor, const Numbers& numbers, const c10::SymInt& elements) const;

 private:
  c10::SymbolicShapeMeta shape_;
};

// Gives `made` the grad_fn and the output number of `like`. If `like` is a leaf, `made` becomes a
// leaf with the same requires_grad.
void share_gradient_edge(const at::Tensor& made, const at::Tensor& like);

}  // namespace fxpress::tensor
