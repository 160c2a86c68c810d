// Reads and copies the metadata of tensors: sizes, strides, dtype, gradient edge.
#pragma once

#include <ATen/ATen.h>
#include <c10/core/SymbolicShapeMeta.h>
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

// The numbers of a tensor, and the size of a new storage for it.
struct Numbers {
  c10::SymInt bytes;
  std::vector<c10::SymInt> sizes, strides;
  c10::SymInt offset;
};

// Returns a meta tensor in `storage` or, if it is nullopt, in a new storage. Symbolic numbers are
// not evaluated.
at::Tensor make_meta(const Numbers& numbers, at::ScalarType dtype,
                     const std::optional<at::Storage>& storage);

// Returns a copy of a fake tensor with the storage of `base`, or with a new storage. `edge` has the
// gradient edge of the copy. Symbolic `numbers` must equal the numbers of `fake`. The copy keeps
// torch's cached facts about the layout of `fake`, except the number of elements, which is computed
// again.
PyObject* fake_result(PyObject* fake, const std::optional<at::Tensor>& base,
                      const std::optional<at::Tensor>& edge, const std::optional<Numbers>& numbers,
                      bool protects);

// Returns a bit for each fact about the layout of a tensor with symbolic sizes that torch has
// computed and cached, such as whether the tensor is contiguous. `kUndecided` is set if a fact
// depends on the values of symbols.
int known_layout(const at::Tensor& tensor);
constexpr int kUndecided = 128;

// The symbolic sizes of a tensor, and the facts about its layout that torch has cached.
class Layout {
 public:
  // Copies the layout of a tensor with symbolic sizes.
  explicit Layout(const at::Tensor& tensor);

  // Gives a tensor with symbolic sizes these facts and, from `numbers`, equal sizes, strides and
  // offset. `elements` is the number of elements if it is one of the facts.
  void give(const at::Tensor& tensor, const Numbers& numbers, const c10::SymInt& elements) const;

 private:
  c10::SymbolicShapeMeta shape_;
};

// Gives `made` the grad_fn and the output number of `like`. If `like` is a leaf, `made` becomes a
// leaf with the same requires_grad.
void share_gradient_edge(const at::Tensor& made, const at::Tensor& like);

}  // namespace fxpress::tensor
