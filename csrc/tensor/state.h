// The state of a program: which tensors are the same data.
#pragma once

#include <ATen/ATen.h>
#include <torch/csrc/utils/pybind.h>

#include <vector>

namespace fxpress::tensor {

// For each value the position of the first one that is the same data: the same object, or tensors
// of one type that see one storage through one view.
std::vector<int64_t> same_data(const std::vector<pybind11::object>& values);

}  // namespace fxpress::tensor
