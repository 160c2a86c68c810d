// The state of a program: which tensors are the same data, and copies of them.
#pragma once

#include <ATen/ATen.h>
#include <torch/csrc/utils/pybind.h>

#include <vector>

namespace fxpress::tensor {

// For each value the position of the first one that is the same data: the same object, or tensors
// of one type that see one storage through one view.
std::vector<int64_t> same_data(const std::vector<pybind11::object>& values);

// A copy of each tensor: `parameters[i]` makes it an nn.Parameter with the original's
// requires_grad, a leaf; other copies keep their history. Tensors of classes of their own and
// everything else is left out (None): Python copies those.
pybind11::list clone_tensors(const std::vector<pybind11::object>& values,
                             const std::vector<bool>& parameters);

}  // namespace fxpress::tensor
