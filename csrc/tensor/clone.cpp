#include "tensor/clone.h"

#include <ATen/Parallel.h>
#include <c10/core/CPUAllocator.h>
#include <torch/csrc/autograd/python_variable.h>

#include <algorithm>
#include <cstring>
#include <unordered_map>

#include "tensor/modes.h"
#include "tensor/python_tensors.h"

namespace fxpress::tensor {

namespace py = pybind11;

namespace {

constexpr size_t kAlignment = 64;             // of what is copied of a storage, bytes
constexpr int64_t kChunk = int64_t{1} << 20;  // bytes: what one thread copies at a time

// The part of a storage that is copied.
struct Part {
  const std::byte* memory;  // of the whole storage
  size_t begin;             // bytes
  size_t end;
  at::Storage copy;
};

bool is_copied_here(PyObject* value, bool watched) {
  if (watched || !is_plain_class(value)) return false;
  const at::Tensor& tensor = THPVariable_Unpack(value);
  return is_plain(tensor) && tensor.is_cpu() && !tensor.is_quantized();
}

// The bytes of its storage that a tensor sees: from the first to behind the last.
std::pair<size_t, size_t> bytes_seen(const at::Tensor& tensor) {
  if (tensor.numel() == 0) return {0, 0};
  size_t last = 0;
  for (int64_t i = 0; i < tensor.dim(); ++i) {
    last += static_cast<size_t>((tensor.size(i) - 1) * tensor.stride(i));
  }
  const size_t item = tensor.itemsize();
  const size_t begin = static_cast<size_t>(tensor.storage_offset()) * item;
  return {begin / kAlignment * kAlignment, begin + (last + 1) * item};
}

// Which part of which storage the tensors see, and which part is that of each tensor.
std::pair<std::vector<Part>, std::vector<size_t>> find_parts(
    const std::vector<const at::Tensor*>& tensors) {
  std::vector<Part> parts;
  std::vector<size_t> of_tensor;
  std::unordered_map<const c10::StorageImpl*, size_t> known;
  parts.reserve(tensors.size());
  of_tensor.reserve(tensors.size());
  known.reserve(tensors.size());
  for (const at::Tensor* tensor : tensors) {
    const at::Storage& storage = tensor->storage();
    const auto [begin, end] = bytes_seen(*tensor);
    const auto [at, added] = known.try_emplace(storage.unsafeGetStorageImpl(), parts.size());
    if (added) {
      const auto* memory = static_cast<const std::byte*>(storage.data());
      parts.push_back({memory, begin, end, at::Storage()});
    } else if (end > begin) {
      Part& part = parts[at->second];
      const bool is_empty = part.begin == part.end;
      part.begin = is_empty ? begin : std::min(part.begin, begin);
      part.end = is_empty ? end : std::max(part.end, end);
    }
    of_tensor.push_back(at->second);
  }
  return {std::move(parts), std::move(of_tensor)};
}

// Allocates and fills the copies.
void copy_parts(std::vector<Part>& parts) {
  std::vector<int64_t> first_chunk;  // of each part
  int64_t chunks = 0;
  for (Part& part : parts) {
    const size_t size = part.end - part.begin;
    part.copy = at::Storage(at::Storage::use_byte_size_t(), size,
                            c10::GetCPUAllocator()->allocate(size), c10::GetCPUAllocator(), true);
    first_chunk.push_back(chunks);
    chunks += std::max<int64_t>(1, (static_cast<int64_t>(size) + kChunk - 1) / kChunk);
  }
  at::parallel_for(0, chunks, 1, [&](int64_t begin, int64_t end) {
    auto at =
        static_cast<size_t>(std::ranges::upper_bound(first_chunk, begin) - first_chunk.begin() - 1);
    for (int64_t chunk = begin; chunk < end; ++chunk) {
      if (at + 1 < parts.size() && first_chunk[at + 1] == chunk) ++at;
      const Part& part = parts[at];
      const auto from = static_cast<size_t>((chunk - first_chunk[at]) * kChunk);
      const size_t size = std::min<size_t>(kChunk, part.end - part.begin - from);
      if (size == 0) continue;
      std::memcpy(static_cast<std::byte*>(part.copy.mutable_data()) + from,
                  part.memory + part.begin + from, size);
    }
  });
}

at::Tensor view_like(const at::Tensor& original, const Part& part) {
  at::Tensor made = at::detail::make_tensor<c10::TensorImpl>(at::Storage(part.copy),
                                                             original.key_set(), original.dtype());
  const auto before = static_cast<int64_t>(part.begin / original.itemsize());
  const int64_t offset = original.numel() == 0 ? 0 : original.storage_offset() - before;
  made.unsafeGetTensorImpl()->set_sizes_and_strides(original.sizes(), original.strides(), offset);
  return made;
}

// No garbage collections among many new objects. No Python code runs and the GIL is kept meanwhile,
// so that nobody else sees it.
class NoCollections {
 public:
  NoCollections() : was_enabled_(PyGC_Disable() != 0) {}
  NoCollections(const NoCollections&) = delete;
  NoCollections& operator=(const NoCollections&) = delete;
  ~NoCollections() {
    if (was_enabled_) PyGC_Enable();
  }

 private:
  bool was_enabled_;
};

}  // namespace

py::list clone_aliased(const std::vector<py::object>& values) {
  const bool watched = is_watched();
  std::vector<const at::Tensor*> tensors;
  tensors.reserve(values.size());
  for (const py::object& value : values) {
    if (is_copied_here(value.ptr(), watched)) tensors.push_back(&THPVariable_Unpack(value.ptr()));
  }
  std::vector<Part> parts;
  std::vector<size_t> of_tensor;
  std::vector<at::Tensor> copies;
  {
    const py::gil_scoped_release release;
    std::tie(parts, of_tensor) = find_parts(tensors);
    copy_parts(parts);
    copies.reserve(tensors.size());
    for (size_t i = 0; i < tensors.size(); ++i) {
      copies.push_back(view_like(*tensors[i], parts[of_tensor[i]]));
    }
  }
  const NoCollections pause;
  py::list result(values.size());
  size_t next = 0;
  for (size_t i = 0; i < values.size(); ++i) {
    PyObject* value = values[i].ptr();
    py::object item = py::none();
    if (is_copied_here(value, watched)) {
      const bool grad = tensors[next]->requires_grad();
      at::Tensor copy = std::move(copies[next++]);
      if (!is_parameter(value)) {
        copy.set_requires_grad(grad);
        item = py::reinterpret_steal<py::object>(THPVariable_Wrap(std::move(copy)));
      } else {
        item = make_parameter(copy, grad);
      }
    }
    result[i] = std::move(item);
  }
  return result;
}

}  // namespace fxpress::tensor
