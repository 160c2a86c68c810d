#include "tensor/storages.h"

#include <torch/csrc/Dtype.h>
#include <torch/csrc/autograd/python_variable.h>

#include <string>
#include <unordered_set>

#include "tensor/large_pages.h"
#include "tensor/python_tensors.h"

namespace fxpress::tensor {

namespace py = pybind11;

std::vector<std::optional<StoragePlace>> storage_places(const std::vector<py::object>& values) {
  std::vector<std::optional<StoragePlace>> places;
  places.reserve(values.size());
  for (const py::object& value : values) {
    if (!is_plain_class(value.ptr())) {
      places.emplace_back();
      continue;
    }
    const at::Tensor& tensor = THPVariable_Unpack(value.ptr());
    if (!is_only_a_view(tensor) || tensor.is_conj() || tensor.is_neg()) {
      places.emplace_back();
      continue;
    }
    const c10::Storage& storage = tensor.storage();
    // A storage that will be copied when it is written to gets memory of its own now, as in torch.
    const auto address = reinterpret_cast<uintptr_t>(storage.mutable_data());
    const auto size = static_cast<int64_t>(storage.nbytes());
    places.emplace_back(std::in_place, address, address == 0 ? 0 : size);
  }
  return places;
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

std::vector<at::Tensor> storages_of(const std::vector<at::Tensor>& tensors) {
  std::vector<at::Tensor> result;
  result.reserve(tensors.size());
  for (const at::Tensor& tensor : tensors) {
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
  const py::gil_scoped_release release;
  for (const int64_t size : sizes) {
    result.first.push_back(at::empty({size}, at::TensorOptions(device).dtype(at::kByte)));
    void* memory = result.first.back().storage().mutable_data();
    if (device.is_cpu()) prefer_large_pages(memory, static_cast<size_t>(size));
    result.second.push_back(reinterpret_cast<uintptr_t>(memory));
  }
  return result;
}

namespace {

[[noreturn]] void bad_view(const View& view, const char* why) {
  throw py::value_error("a tensor of " + std::get<std::string>(view) + " " + why);
}

// Bytes that a storage has to have for a view; throws for numbers that make none.
uint64_t bytes_needed(const View& view, uint64_t item) {
  const auto& [storage, label, dtype, sizes, strides, offset, grad, parameter] = view;
  if (sizes.size() != strides.size()) bad_view(view, "has not as many strides as sizes");
  bool is_empty = false;
  bool overflows = offset < 0;
  uint64_t last = overflows ? 0 : static_cast<uint64_t>(offset);  // the last element
  for (size_t i = 0; i < sizes.size(); ++i) {
    if (sizes[i] < 0 || strides[i] < 0) bad_view(view, "has negative sizes or strides");
    if (sizes[i] == 0) {
      is_empty = true;
      continue;
    }
    uint64_t span = 0;
    overflows |= __builtin_mul_overflow(static_cast<uint64_t>(sizes[i] - 1),
                                        static_cast<uint64_t>(strides[i]), &span);
    overflows |= __builtin_add_overflow(last, span, &last);
  }
  uint64_t bytes = 0;
  overflows |= __builtin_add_overflow(last, uint64_t{1}, &last);
  overflows |= __builtin_mul_overflow(last, item, &bytes);
  if (overflows) bad_view(view, "has sizes, strides or an offset out of range");
  return is_empty ? 0 : bytes;
}

at::Tensor make_view(const at::Tensor& bytes, const View& view) {
  const auto& [index, label, dtype, sizes, strides, offset, grad, parameter] = view;
  if (!THPDtype_Check(dtype.ptr())) throw py::type_error("a view needs a dtype");
  const at::ScalarType type = reinterpret_cast<THPDtype*>(dtype.ptr())->scalar_type;
  if (bytes_needed(view, c10::elementSize(type)) > bytes.storage().nbytes()) {
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

}  // namespace

py::list make_views(const std::vector<at::Tensor>& storages, const std::vector<View>& views) {
  py::list result(views.size());
  for (size_t i = 0; i < views.size(); ++i) {
    const auto& [index, label, dtype, sizes, strides, offset, grad, is_parameter] = views[i];
    const at::Tensor made = make_view(storages.at(index), views[i]);
    if (is_parameter) {
      result[i] = make_parameter(made, grad);
    } else {
      if (grad) made.set_requires_grad(true);
      result[i] = py::reinterpret_steal<py::object>(THPVariable_Wrap(made));
    }
  }
  return result;
}

}  // namespace fxpress::tensor
