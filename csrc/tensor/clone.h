// Copies of many tensors at once, which share storages where the originals do.
#pragma once

#include <ATen/ATen.h>
#include <torch/csrc/utils/pybind.h>

#include <utility>
#include <vector>

namespace fxpress::tensor {

// Copies each tensor on the CPU that is only a view of a storage. A copy has the same sizes,
// strides and requires_grad, no history, and is a Parameter if the original was one. The storages
// of the copies have the bytes of the originals' storages that the tensors see, and no more; small
// ones share memory. A tensor that occurs twice gets one copy. Other tensors get None, and are
// returned by position too: Python copies them. TypeError for a value that is no tensor.
std::pair<pybind11::list, pybind11::dict> clone_aliased(const pybind11::list& values);

// A copy of each tensor, with a storage of its own: `parameters[i]` makes it an nn.Parameter with
// the original's requires_grad. None for what clone() does not simply copy, tensors with history or
// of classes of their own, and everything that is no tensor: Python copies those. ValueError unless
// there is a flag for each value.
pybind11::list clone_separately(const pybind11::list& values, const std::vector<bool>& parameters);

}  // namespace fxpress::tensor
