// Inspects and creates storages and views of storages, many of them in one call.
#pragma once

#include <ATen/ATen.h>
#include <torch/csrc/utils/pybind.h>

#include <optional>
#include <string>
#include <tuple>
#include <vector>

namespace fxpress::tensor {

// (address, bytes) of a tensor's storage. Both are 0 if the storage is empty or a meta storage.
using StoragePlace = std::pair<uintptr_t, int64_t>;

// Returns the address and size of each tensor's storage. Returns nullopt for values that are not
// plain views, such as subclasses, and sparse, quantized, conjugated or negated tensors. The
// capsule keeps the storages alive.
std::pair<std::vector<std::optional<StoragePlace>>, pybind11::capsule> storage_places(
    const std::vector<pybind11::object>& values);

// Returns the total bytes of the tensors' storages, each storage counted once. Tensors without
// storage (sparse, wrappers) count 0.
int64_t storage_bytes(const std::vector<at::Tensor>& tensors);

// Returns the number of each value's storage, counted from 0 by first occurrence; -1 for a value
// that is not a plain view (see storage_places) or is on the device `but_on`.
std::vector<int64_t> storage_numbers(const pybind11::list& values,
                                     const std::optional<at::Device>& but_on);

// Returns the storage of each tensor as a uint8 tensor with one dimension.
std::vector<at::Tensor> storages_of(const std::vector<at::Tensor>& tensors);

// Allocates memory on a device: uninitialized uint8 tensors, and their addresses.
std::pair<std::vector<at::Tensor>, std::vector<uintptr_t>> allocate_bytes(
    const std::vector<int64_t>& sizes, const at::Device& device);

// Returns for each value a tensor on storages[number] with the metadata of the value, or None if
// the number is -1. A value that occurs twice gets one tensor. ValueError for a storage that is
// smaller than the value's storage.
pybind11::list views_like(const pybind11::list& values, const std::vector<int64_t>& numbers,
                          const std::vector<at::Tensor>& storages);

// A tensor to create: index of its storage, its name for error messages, dtype, sizes, strides and
// offset in elements, requires_grad, whether it is a Parameter.
using View = std::tuple<size_t, std::string, pybind11::object, std::vector<int64_t>,
                        std::vector<int64_t>, int64_t, bool, bool>;

// Creates a tensor for each view; ValueError if a view has invalid numbers or exceeds its storage.
pybind11::list make_views(const std::vector<at::Tensor>& storages, const std::vector<View>& views);

// Returns for each value the index of the first value that is the same object, or a tensor with the
// same dtype, storage, sizes, strides and offset.
std::vector<int64_t> same_data(const std::vector<pybind11::object>& values);

}  // namespace fxpress::tensor
