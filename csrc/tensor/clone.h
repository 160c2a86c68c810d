// Copies of many tensors at once, which share storages where the originals do.
#pragma once

#include <ATen/ATen.h>
#include <torch/csrc/utils/pybind.h>

#include <utility>
#include <vector>

namespace fxpress::tensor {

// For each tensor on the CPU that is only a view of a storage: a copy with the same sizes, strides
// and requires_grad, without history, a Parameter if it was one. The storages of the copies have
// what the tensors see of the originals' storages, and no more; small ones share memory. A tensor
// that occurs twice is one copy. None for other tensors, and those by position: Python copies them.
// TypeError for what is no tensor.
std::pair<pybind11::list, pybind11::dict> clone_aliased(const pybind11::list& values);

// A copy of each tensor, with a storage of its own: `parameters[i]` makes it an nn.Parameter with
// the original's requires_grad. None for what clone() does not simply copy, tensors with history or
// of classes of their own, and everything that is no tensor: Python copies those. ValueError unless
// there is a flag for each value.
pybind11::list clone_separately(const pybind11::list& values, const std::vector<bool>& parameters);

}  // namespace fxpress::tensor
