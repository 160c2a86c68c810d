// How autograd sees a tensor.
#pragma once

#include <ATen/ATen.h>

namespace fxpress::tensor {

// Makes autograd see a tensor as it sees another: as the result of the same function, or as a leaf
// that requires a gradient if the other is one.
void share_gradient_edge(const at::Tensor& made, const at::Tensor& like);

}  // namespace fxpress::tensor
