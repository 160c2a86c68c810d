// Storages and the tensors that are views of them, many at a time.
#pragma once

#include <ATen/ATen.h>
#include <torch/csrc/utils/pybind.h>

#include <optional>
#include <string>
#include <tuple>
#include <vector>

namespace fxpress::tensor {

// Where the data of a tensor is: (address, bytes) of its storage. Both are 0 without memory (empty,
// on the meta device).
using StoragePlace = std::pair<uintptr_t, int64_t>;

// Returns the place of each tensor, and none for a tensor that is more than a view of a storage: of
// a class of its own, not strided, quantized, conjugated or negated. The capsule keeps the storages
// alive.
std::pair<std::vector<std::optional<StoragePlace>>, pybind11::capsule> storage_places(
    const std::vector<pybind11::object>& values);

// Bytes that the tensors' storages occupy, shared ones counted once. Views of one storage share it;
// tensors without storage (sparse, meta-free wrappers) count nothing.
int64_t storage_bytes(const std::vector<at::Tensor>& tensors);

// For each value the number of its storage: 0 for the storage of the first tensor, and so on. -1
// for a value that has no place (above), or is on the device `but_on`.
std::vector<int64_t> storage_numbers(const pybind11::list& values,
                                     const std::optional<at::Device>& but_on);

// The storages of tensors as tensors of bytes: uint8, one dimension.
std::vector<at::Tensor> storages_of(const std::vector<at::Tensor>& tensors);

// Memory on a device, not filled: tensors of bytes, and their addresses.
std::pair<std::vector<at::Tensor>, std::vector<uintptr_t>> allocate_bytes(
    const std::vector<int64_t>& sizes, const at::Device& device);

// Tensors like the values on other storages, each at the number of the old one; None for values
// with the number -1. A value that occurs twice gives one tensor. ValueError for a storage that is
// smaller than the old one.
pybind11::list views_like(const pybind11::list& values, const std::vector<int64_t>& numbers,
                          const std::vector<at::Tensor>& storages);

// A tensor that is to be made: the position of its storage among those given, what to call it in
// errors, dtype, sizes, strides and offset in elements, requires_grad, whether it is a Parameter.
using View = std::tuple<size_t, std::string, pybind11::object, std::vector<int64_t>,
                        std::vector<int64_t>, int64_t, bool, bool>;

// The tensors. ValueError for a view that is not inside of its storage, or has negative numbers.
pybind11::list make_views(const std::vector<at::Tensor>& storages, const std::vector<View>& views);

// For each value the position of the first one that is the same data: the same object, or tensors
// of one type that see one storage through one view.
std::vector<int64_t> same_data(const std::vector<pybind11::object>& values);

}  // namespace fxpress::tensor
