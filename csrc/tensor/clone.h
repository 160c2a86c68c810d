// Copies many tensors at once. Copies share storages if the originals do.
#pragma once

#include <ATen/ATen.h>
#include <torch/csrc/utils/pybind.h>

#include <utility>
#include <vector>

namespace fxpress::tensor {

// Copies each CPU tensor that is only a view of a storage. A copy has the same sizes, strides and
// requires_grad, no history, and is a Parameter if the original is one. The storages of the copies
// have only the bytes that the copied tensors use; small storages share a block of memory. A tensor
// that occurs twice gets one copy. Python must copy all other tensors: the list has None for them,
// and the dict has {position: tensor}. TypeError for a value that is not a tensor.
std::pair<pybind11::list, pybind11::dict> clone_aliased(const pybind11::list& values);

// Copies each tensor to a separate storage. If `parameters[i]` is set, the copy is an nn.Parameter
// with the original's requires_grad. The list has None for values that Python must copy: tensors
// whose clone() is not a bytewise copy or has history, subclasses, tensors that are not on the CPU,
// and objects that are not tensors. ValueError unless `parameters` has a flag for each value.
pybind11::list clone_separately(const pybind11::list& values, const std::vector<bool>& parameters);

}  // namespace fxpress::tensor
