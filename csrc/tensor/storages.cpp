#include "tensor/storages.h"

#include <c10/core/DeviceGuard.h>
#include <torch/csrc/Dtype.h>
#include <torch/csrc/autograd/python_variable.h>

#include <algorithm>
#include <memory>
#include <string>
#include <unordered_map>
#include <unordered_set>

#include "core/extent.h"
#include "core/flat_map.h"
#include "tensor/large_pages.h"
#include "tensor/python_tensors.h"

namespace fxpress::tensor {

namespace py = pybind11;

namespace {

// Returns the tensor of a value, or null unless it is a plain view and not of a subclass.
const at::Tensor* view_of_storage(PyObject* value) {
  if (!is_plain_class(value)) return nullptr;
  const at::Tensor& tensor = THPVariable_Unpack(value);
  return is_only_a_view(tensor) && !tensor.is_conj() && !tensor.is_neg() ? &tensor : nullptr;
}

// Returns a key that is equal for two values with the same data: the storage, or the value itself
// if it has no plain storage.
const void* data_key(PyObject* value) {
  if (!THPVariable_Check(value)) return value;
  const at::Tensor& tensor = THPVariable_Unpack(value);
  if (is_plain(tensor)) return tensor.storage().unsafeGetStorageImpl();
  return tensor.unsafeGetTensorImpl();
}

// Whether two values with the same data_key() are the same view.
bool is_same_view(PyObject* a, PyObject* b) {
  if (!THPVariable_Check(a)) return true;
  const at::Tensor& left = THPVariable_Unpack(a);
  const at::Tensor& right = THPVariable_Unpack(b);
  if (!is_plain(left)) return true;
  return left.scalar_type() == right.scalar_type() &&
         left.storage_offset() == right.storage_offset() && left.is_conj() == right.is_conj() &&
         left.is_neg() == right.is_neg() && left.sizes() == right.sizes() &&
         left.strides() == right.strides();
}

}  // namespace

std::pair<std::vector<std::optional<StoragePlace>>, py::capsule> storage_places(
    const std::vector<py::object>& values) {
  std::vector<std::optional<StoragePlace>> places;
  places.reserve(values.size());
  auto held = std::make_unique<std::vector<c10::Storage>>();
  for (const py::object& value : values) {
    const at::Tensor* tensor = view_of_storage(value.ptr());
    if (tensor == nullptr) {
      places.emplace_back();
      continue;
    }
    const c10::Storage& storage = tensor->storage();
    // Like Tensor.data_ptr(), mutable_data() copies a copy-on-write storage.
    const auto address = reinterpret_cast<uintptr_t>(storage.mutable_data());
    const auto size = static_cast<int64_t>(storage.nbytes());
    places.emplace_back(std::in_place, address, address == 0 ? 0 : size);
    held->push_back(storage);
  }
  py::capsule holder(held.release(),
                     [](void* all) { delete static_cast<std::vector<c10::Storage>*>(all); });
  return {std::move(places), std::move(holder)};
}

int64_t storage_bytes(const std::vector<at::Tensor>& tensors) {
  std::unordered_set<const c10::StorageImpl*> seen;
  int64_t total = 0;
  for (const at::Tensor& tensor : tensors) {
    if (!tensor.defined() || !tensor.has_storage()) continue;
    const c10::StorageImpl* storage = tensor.storage().unsafeGetStorageImpl();
    if (seen.insert(storage).second) total += static_cast<int64_t>(storage->nbytes());
  }
  return total;
}

std::vector<int64_t> storage_numbers(const py::list& values,
                                     const std::optional<at::Device>& but_on) {
  std::vector<int64_t> numbers;
  numbers.reserve(values.size());
  core::FlatMap known(values.size());
  for (const py::handle value : values) {
    numbers.push_back(-1);
    const at::Tensor* tensor = view_of_storage(value.ptr());
    if (tensor == nullptr || (but_on && tensor->device() == *but_on)) continue;
    const auto key = reinterpret_cast<uintptr_t>(tensor->storage().unsafeGetStorageImpl());
    numbers.back() = known.insert(key, static_cast<uint32_t>(known.size())).value;
  }
  return numbers;
}

namespace {

// Returns a uint8 tensor of all bytes of a storage, with one dimension.
at::Tensor bytes_of(c10::Storage storage, c10::DispatchKeySet keys) {
  const auto size = static_cast<int64_t>(storage.nbytes());
  at::Tensor made = at::detail::make_tensor<c10::TensorImpl>(std::move(storage), keys,
                                                             c10::scalarTypeToTypeMeta(at::kByte));
  made.unsafeGetTensorImpl()->set_sizes_contiguous({size});
  return made;
}

}  // namespace

std::vector<at::Tensor> storages_of(const std::vector<at::Tensor>& tensors) {
  std::vector<at::Tensor> result;
  result.reserve(tensors.size());
  for (const at::Tensor& tensor : tensors) {
    // If Python code runs a tensor's operators, as for a fake tensor, torch creates the result.
    const bool is_computed_here =
        !tensor.key_set().has(c10::DispatchKey::Python) && !tensor.is_conj() && !tensor.is_neg();
    if (is_only_a_view(tensor) && is_computed_here) {
      result.push_back(bytes_of(tensor.storage(), tensor.key_set()));
      continue;
    }
    const c10::Storage& storage = tensor.storage();
    const auto size = static_cast<int64_t>(storage.nbytes());
    result.push_back(at::empty({0}, tensor.options().dtype(at::kByte).layout(at::kStrided)));
    result.back().set_(storage, 0, {size}, {1});
  }
  return result;
}

std::pair<std::vector<at::Tensor>, std::vector<uintptr_t>> allocate_bytes(
    const std::vector<int64_t>& sizes, const at::Device& device) {
  std::pair<std::vector<at::Tensor>, std::vector<uintptr_t>> result;
  auto& [made, addresses] = result;
  made.reserve(sizes.size());
  addresses.reserve(sizes.size());
  const bool observed = copies_are_observed();
  const py::gil_scoped_release release;
  const auto options = at::TensorOptions(device).dtype(at::kByte);
  // at::empty() allocates the first tensor and initializes the device. The allocator of this tensor
  // allocates the other tensors.
  const c10::OptionalDeviceGuard guard(device);
  for (const int64_t size : sizes) {
    c10::Allocator* allocator = made.empty() ? nullptr : made.front().storage().allocator();
    if (observed || allocator == nullptr || size < 0) {
      made.push_back(at::empty({size}, options));
    } else {
      const auto bytes = static_cast<size_t>(size);
      c10::Storage storage(c10::Storage::use_byte_size_t(), bytes, allocator->allocate(bytes),
                           allocator, /*resizable=*/true);
      made.push_back(bytes_of(std::move(storage), made.front().key_set()));
    }
    void* memory = made.back().storage().mutable_data();
    if (device.is_cpu()) prefer_large_pages(memory, static_cast<size_t>(size));
    addresses.push_back(reinterpret_cast<uintptr_t>(memory));
  }
  return result;
}

namespace {

[[noreturn]] void bad_view(const View& view, const char* why) {
  throw py::value_error("a tensor of " + std::get<std::string>(view) + " " + why);
}

// Returns the bytes that a storage needs for a view; throws for invalid sizes, strides or offset.
uint64_t storage_size_for(const View& view, uint64_t item) {
  const auto& [storage, label, dtype, sizes, strides, offset, grad, parameter] = view;
  if (sizes.size() != strides.size()) bad_view(view, "does not have as many strides as sizes");
  const auto is_negative = [](int64_t number) { return number < 0; };
  if (std::ranges::any_of(sizes, is_negative) || std::ranges::any_of(strides, is_negative)) {
    bad_view(view, "has negative sizes or strides");
  }
  const auto bytes = core::bytes_needed(sizes, strides, offset, item);
  if (!bytes) bad_view(view, "has sizes, strides or an offset out of range");
  return *bytes;
}

at::Tensor make_view(const at::Tensor& bytes, const View& view) {
  const auto& [index, label, dtype, sizes, strides, offset, grad, parameter] = view;
  if (!THPDtype_Check(dtype.ptr())) throw py::type_error("expected a torch.dtype for a view");
  const at::ScalarType type = reinterpret_cast<THPDtype*>(dtype.ptr())->scalar_type;
  if (storage_size_for(view, c10::elementSize(type)) > bytes.storage().nbytes()) {
    bad_view(view, "is larger than its storage");
  }
  if (grad && !at::isFloatingType(type) && !at::isComplexType(type)) {
    bad_view(view, "cannot require gradients");
  }
  at::Tensor made = at::detail::make_tensor<c10::TensorImpl>(
      c10::Storage(bytes.storage()), bytes.key_set(), c10::scalarTypeToTypeMeta(type));
  made.unsafeGetTensorImpl()->set_sizes_and_strides(sizes, strides, offset);
  return made;
}

// Returns a tensor with the metadata of `original` on the storage of `bytes`.
at::Tensor view_on(const at::Tensor& original, const at::Tensor& bytes) {
  if (bytes.storage().nbytes() < original.storage().nbytes()) {
    throw py::value_error("a storage is smaller than the storage that it replaces");
  }
  at::Tensor made = at::detail::make_tensor<c10::TensorImpl>(c10::Storage(bytes.storage()),
                                                             bytes.key_set(), original.dtype());
  made.unsafeGetTensorImpl()->set_sizes_and_strides(original.sizes(), original.strides(),
                                                    original.storage_offset());
  return made;
}

}  // namespace

py::list views_like(const py::list& values, const std::vector<int64_t>& numbers,
                    const std::vector<at::Tensor>& storages) {
  if (numbers.size() != values.size()) {
    throw py::value_error("expected a storage number for each of " + std::to_string(values.size()) +
                          " values, got " + std::to_string(numbers.size()));
  }
  // Creating objects may collect garbage, which may run code that changes the list.
  const auto kept = py::reinterpret_steal<py::tuple>(PyList_AsTuple(values.ptr()));
  if (!kept) throw py::error_already_set();
  py::list result(kept.size());
  core::FlatMap known(kept.size());
  for (size_t i = 0; i < kept.size(); ++i) {
    PyObject* value = PyTuple_GET_ITEM(kept.ptr(), static_cast<Py_ssize_t>(i));
    if (numbers[i] < 0) {
      result[i] = py::none();
      continue;
    }
    const at::Tensor* original = view_of_storage(value);
    if (original == nullptr) {
      throw py::type_error("expected a plain tensor as each value with a storage number");
    }
    const auto first = known.insert(reinterpret_cast<uintptr_t>(value), static_cast<uint32_t>(i));
    if (!first.added) {
      result[i] = py::object(result[first.value]);
      continue;
    }
    at::Tensor made = view_on(*original, storages.at(static_cast<size_t>(numbers[i])));
    result[i] = to_python(std::move(made), is_parameter(value), original->requires_grad());
  }
  return result;
}

py::list make_views(const std::vector<at::Tensor>& storages, const std::vector<View>& views) {
  py::list result(views.size());
  for (size_t i = 0; i < views.size(); ++i) {
    const auto& [index, label, dtype, sizes, strides, offset, grad, is_parameter] = views[i];
    result[i] = to_python(make_view(storages.at(index), views[i]), is_parameter, grad);
  }
  return result;
}

std::vector<int64_t> same_data(const std::vector<py::object>& values) {
  std::unordered_map<const void*, int64_t> latest;  // data_key() -> index of its last distinct view
  std::vector<int64_t> previous(values.size(), -1);  // by index: the previous view with its key
  std::vector<int64_t> result;
  latest.reserve(values.size());
  result.reserve(values.size());
  for (size_t i = 0; i < values.size(); ++i) {
    const auto [entry, added] = latest.try_emplace(data_key(values[i].ptr()), -1);
    int64_t same = entry->second;
    while (same >= 0 && !is_same_view(values[static_cast<size_t>(same)].ptr(), values[i].ptr())) {
      same = previous[static_cast<size_t>(same)];
    }
    if (same < 0) {
      same = static_cast<int64_t>(i);
      previous[i] = entry->second;
      entry->second = same;
    }
    result.push_back(same);
  }
  return result;
}

}  // namespace fxpress::tensor
