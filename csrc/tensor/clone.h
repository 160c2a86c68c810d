// Copies of many tensors at once, which share storages where the originals do.
#pragma once

#include <ATen/ATen.h>
#include <torch/csrc/utils/pybind.h>

#include <vector>

namespace fxpress::tensor {

// For each tensor on the CPU that is only a view of a storage: a copy with the same sizes, strides
// and requires_grad, without history, a Parameter if it was one. The storages of the copies have
// what the tensors see of the originals' storages, and no more. None for other tensors: Python
// copies those.
pybind11::list clone_aliased(const std::vector<pybind11::object>& values);

}  // namespace fxpress::tensor
