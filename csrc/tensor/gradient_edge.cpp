#include "tensor/gradient_edge.h"

#include <torch/csrc/autograd/variable.h>

#include <cstdint>

namespace fxpress::tensor {

void share_gradient_edge(const at::Tensor& made, const at::Tensor& like) {
  const auto& function = like.grad_fn();
  if (!function) {
    made.set_requires_grad(like.requires_grad());
    return;
  }
  torch::autograd::impl::set_gradient_edge(made,
                                           {function, static_cast<uint32_t>(like.output_nr())});
}

}  // namespace fxpress::tensor
