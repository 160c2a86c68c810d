#include "tensor/clone.h"

#include <ATen/Parallel.h>
#include <c10/core/CPUAllocator.h>
#include <torch/csrc/autograd/python_variable.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <cstring>
#include <limits>
#include <memory>
#include <optional>
#include <string>
#include <system_error>

#include "core/crew.h"
#include "core/extent.h"
#include "core/flat_map.h"
#include "py/gc_pause.h"
#include "tensor/large_pages.h"
#include "tensor/python_tensors.h"

namespace fxpress::tensor {

namespace py = pybind11;

namespace {

constexpr size_t kAlignment = 64;           // alignment of copied parts of storages, bytes
constexpr size_t kLine = 64;                // cache line, bytes
constexpr size_t kAhead = 8;                // number of tensors between a prefetch and its use
constexpr size_t kGroup = size_t{1} << 20;  // bytes of small parts that form one piece
constexpr size_t kWorthAThread = size_t{1} << 21;  // bytes that justify one more thread
constexpr size_t kWorthRelease = size_t{1} << 25;  // bytes from which the GIL is released
constexpr std::chrono::milliseconds kSignalPollInterval{50};

// The part of a storage that is copied.
struct Part {
  c10::StorageImpl* original;
  const std::byte* data;  // start of the entire storage
  size_t begin;           // range of the part in the storage, bytes
  size_t end;
  uint32_t first;  // index in Originals::tensors of the first tensor on this part
  uint32_t last;
  at::Storage copy;

  size_t size() const { return end - begin; }
  void extend(size_t from, size_t to) {
    const bool is_empty = size() == 0;
    begin = is_empty ? from : std::min(begin, from);
    end = is_empty ? to : std::max(end, to);
  }
};

// Whether a value is a tensor. isinstance() would run the `__class__` property of the value.
bool is_tensor(PyObject* value) {
  return PyType_IsSubtype(Py_TYPE(value), reinterpret_cast<PyTypeObject*>(THPVariableClass)) != 0;
}

// Whether this file, and not Python, copies a value. observed: see copies_are_observed().
bool is_copied_here(PyObject* value, bool observed) {
  if (observed || !is_plain_class(value)) return false;
  const at::Tensor& tensor = THPVariable_Unpack(value);
  return is_only_a_view(tensor) && tensor.is_cpu();
}

// Returns the bytes that a tensor uses in its storage; ValueError for a range beyond 64 bits.
std::pair<size_t, size_t> bytes_seen(const at::Tensor& tensor) {
  if (tensor.numel() == 0) return {0, 0};
  const size_t item = tensor.itemsize();
  const auto end = core::bytes_needed({tensor.sizes().data(), tensor.sizes().size()},
                                      {tensor.strides().data(), tensor.strides().size()},
                                      tensor.storage_offset(), item);
  if (!end) throw py::value_error("a tensor is larger than its storage");
  return {static_cast<size_t>(tensor.storage_offset()) * item, *end};
}

// Prefetches memory that is read soon. Tensors are scattered and each is read once, so the hardware
// does not predict these reads.
void prefetch(const void* memory, size_t bytes) {
  for (size_t i = 0; i < bytes; i += kLine) {
    __builtin_prefetch(static_cast<const std::byte*>(memory) + i);
  }
}

// Prefetches later tensors of a list: first the Python object, some calls later its TensorImpl, and
// then its StorageImpl, because each contains the pointer to the next.
void prefetch_tensors(PyObject* list, size_t i) {
  const auto size = static_cast<size_t>(PyList_GET_SIZE(list));
  const auto item = [&](size_t k) { return PyList_GET_ITEM(list, static_cast<Py_ssize_t>(k)); };
  if (i + 3 * kAhead < size) prefetch(item(i + 3 * kAhead), sizeof(THPVariable));
  if (i + 2 * kAhead < size && is_plain_class(item(i + 2 * kAhead))) {
    prefetch(THPVariable_Unpack(item(i + 2 * kAhead)).unsafeGetTensorImpl(),
             sizeof(c10::TensorImpl));
  }
  if (i + kAhead < size && is_plain_class(item(i + kAhead))) {
    const auto* tensor = THPVariable_Unpack(item(i + kAhead)).unsafeGetTensorImpl();
    prefetch(tensor->unsafe_storage().unsafeGetStorageImpl(), sizeof(c10::StorageImpl));
  }
}

// The tensors to copy, each once, and the parts of storages that they use.
class Originals {
 public:
  static constexpr uint32_t kElsewhere = core::FlatMap::kAbsent;  // Python copies the value

  struct Original {
    PyObject* object;  // borrowed
    const at::Tensor* tensor;
    uint32_t part;
    bool as_parameter;  // the copy becomes a Parameter
  };

  explicit Originals(size_t count) : storages_(count) {
    tensors.reserve(count);
    parts.reserve(count);
  }

  // Adds a tensor; returns its index in `tensors`. ValueError if the tensor exceeds its storage.
  uint32_t add(PyObject* object) {
    const at::Tensor& tensor = THPVariable_Unpack(object);
    Part seen = part_of(tensor);
    seen.begin = seen.begin / kAlignment * kAlignment;
    // If nothing else refers to a tensor or to its storage, the list contains both only once.
    const auto next = static_cast<uint32_t>(parts.size());
    const bool is_alone = tensor.storage().use_count() == 1 && Py_REFCNT(object) == 1;
    const auto [at, is_new] =
        is_alone ? core::FlatMap::Inserted{next, true} : storages_.insert(key(seen.original), next);
    if (!is_new) {
      Part& part = parts[at];
      if (tensors[part.first].object == object) return part.first;
      const auto [known, added] = later_.insert(key(object), seen.first);
      if (!added) return known;
      if (seen.size() > 0) part.extend(seen.begin, seen.end);
      part.last = seen.first;
    }
    const uint32_t index = seen.first;
    if (is_new) parts.push_back(std::move(seen));
    tensors.push_back({object, &tensor, at, is_parameter(object)});
    return index;
  }

  // Adds a tensor whose copy does not share its storage with other copies.
  uint32_t add_alone(PyObject* object, bool as_parameter) {
    const at::Tensor& tensor = THPVariable_Unpack(object);
    const auto part = static_cast<uint32_t>(parts.size());
    parts.push_back(part_of(tensor));
    tensors.push_back({object, &tensor, part, as_parameter});
    return part;
  }

  std::vector<Original> tensors;
  std::vector<Part> parts;

 private:
  static uint64_t key(const void* address) { return reinterpret_cast<uintptr_t>(address); }

  // Returns the part of a tensor's storage that the tensor uses. The caller then adds the tensor.
  Part part_of(const at::Tensor& tensor) const {
    const at::Storage& storage = tensor.storage();
    const auto [begin, end] = bytes_seen(tensor);
    const auto* data = static_cast<const std::byte*>(storage.data());
    if (end > storage.nbytes() || (end != 0 && data == nullptr)) {
      throw py::value_error("a tensor is larger than its storage");
    }
    const auto index = static_cast<uint32_t>(tensors.size());
    return {storage.unsafeGetStorageImpl(), data, begin, end, index, index, at::Storage()};
  }

  core::FlatMap storages_;  // storage -> index of its part
  core::FlatMap later_;     // tensor -> index in `tensors`, except the first tensor of each part
};

// Memory that many small storages share. The last of these storages frees it.
class Slab {
 public:
  explicit Slab(size_t size) : memory_(c10::GetCPUAllocator()->allocate(size)), size_(size) {}

  bool has_space(size_t size) const { return size <= size_ - used_; }
  // Returns the next `size` bytes, aligned.
  c10::DataPtr take(size_t size) {
    auto* begin = static_cast<std::byte*>(memory_.mutable_get()) + used_;
    used_ += (size + kAlignment - 1) / kAlignment * kAlignment;
    users_.fetch_add(1, std::memory_order_relaxed);
    return {begin, this, &Slab::release, c10::Device(c10::kCPU)};
  }
  // Drops one use of a slab; called once by each storage, and by the creator of the slab.
  static void release(void* slab) {
    auto* self = static_cast<Slab*>(slab);
    if (self->users_.fetch_sub(1, std::memory_order_acq_rel) == 1) delete self;
  }

 private:
  c10::DataPtr memory_;
  size_t size_;  // bytes of the memory
  size_t used_ = 0;
  std::atomic<size_t> users_ = 1;  // number of its storages, plus 1 for its creator
};

// Allocates storages; small ones share slabs.
class Memory {
 public:
  at::Storage storage(size_t size) {
    c10::Allocator* allocator = c10::GetCPUAllocator();
    const bool is_alone = size > kSmall || size == 0;
    at::Storage made(at::Storage::use_byte_size_t(), size,
                     is_alone ? allocator->allocate(size) : from_slab(size), allocator, true);
    prefer_large_pages(made.mutable_data(), size);
    return made;
  }

 private:
  static constexpr size_t kSmall = 4096;            // maximum bytes of a storage in a slab
  static constexpr size_t kSlab = size_t{1} << 16;  // bytes of a slab

  struct Release {
    void operator()(Slab* slab) const { Slab::release(slab); }
  };
  c10::DataPtr from_slab(size_t size) {
    if (!slab_ || !slab_->has_space(size)) slab_.reset(new Slab(kSlab));
    return slab_->take(size);
  }

  std::unique_ptr<Slab, Release> slab_;  // the slab for the next small storages
};

// The bytes of a part and their destination. Copying threads read this struct instead of the
// StorageImpl, because the calling thread changes the reference count in the StorageImpl's cache
// line.
struct Bytes {
  const std::byte* from;
  std::byte* to;
  size_t size;
};

// Allocates a storage for every part.
std::vector<Bytes> allocate(std::vector<Part>& parts) {
  std::vector<Bytes> bytes;
  bytes.reserve(parts.size());
  Memory memory;
  for (Part& part : parts) {
    part.copy = memory.storage(part.size());
    bytes.push_back({part.size() == 0 ? nullptr : part.data + part.begin,
                     static_cast<std::byte*>(part.copy.mutable_data()), part.size()});
  }
  return bytes;
}

// The bytes that a thread copies at a time: a range of one part, or several entire parts.
struct Piece {
  size_t first;  // index of the first part
  size_t last;
  size_t from = 0;  // range of bytes to copy in each part
  size_t to = std::numeric_limits<size_t>::max();
};

// Cuts a part where its copy crosses into another large page, so that each page has one writer. The
// system clears a page at the first write, and other threads that write to it have to wait.
void cut(const Bytes& part, size_t index, std::vector<Piece>& pieces) {
  size_t from = 0;
  while (from < part.size) {
    const auto in_page = (reinterpret_cast<uintptr_t>(part.to) + from) % kLargePage;
    const size_t to = std::min(part.size, from + (kLargePage - in_page));
    pieces.push_back({index, index, from, to});
    from = to;
  }
}

std::vector<Piece> pieces_of(const std::vector<Bytes>& parts) {
  std::vector<Piece> pieces;
  size_t first = 0;
  size_t bytes = 0;
  const auto close = [&](size_t end) {
    if (first < end) pieces.push_back({first, end - 1});
    bytes = 0;
    first = end;
  };
  for (size_t i = 0; i < parts.size(); ++i) {
    const size_t size = parts[i].size;
    if (size + bytes > kGroup) close(i);
    bytes += size;
    if (size <= kLargePage) continue;
    cut(parts[i], i, pieces);
    first = i + 1;
    bytes = 0;
  }
  close(parts.size());
  return pieces;
}

void copy(const std::vector<Bytes>& parts, const Piece& piece) {
  for (size_t i = piece.first; i <= piece.last; ++i) {
    const Bytes& part = parts[i];
    const size_t to = std::min(piece.to, part.size);
    if (to != piece.from)
      std::memcpy(part.to + piece.from, part.from + piece.from, to - piece.from);
  }
}

size_t total_of(const std::vector<Bytes>& parts) {
  size_t total = 0;
  for (const Bytes& part : parts) total += part.size;
  return total;
}

// Fills the copies on at most as many threads as torch uses. The caller of finish() is one of them.
// Originals and copies must outlive this object.
class Filling {
 public:
  explicit Filling(std::vector<Bytes> parts)
      : parts_(std::move(parts)), pieces_(pieces_of(parts_)) {
    const size_t bytes = total_of(parts_);
    const size_t threads = std::min(
        {static_cast<size_t>(at::get_num_threads()), pieces_.size(), bytes / kWorthAThread});
    try {
      for (size_t i = 1; i < threads; ++i) crew_.add([this] { work(Time::max()); });
    } catch (const std::system_error&) {  // NOLINT(bugprone-empty-catch)
      // No more threads can start; the existing threads copy everything.
    }
  }
  Filling(const Filling&) = delete;
  Filling& operator=(const Filling&) = delete;
  ~Filling() { next_ = pieces_.size(); }  // stops the threads if finish() was not reached

  // release: release the GIL, and check for signals every kSignalPollInterval.
  void finish(bool release) {
    if (!release) {
      work(Time::max());
      return crew_.join();
    }
    for (bool is_done = false; !is_done;) {
      {
        const py::gil_scoped_release released;
        is_done = work(std::chrono::steady_clock::now() + kSignalPollInterval);
        if (is_done) crew_.join();
      }
      if (PyErr_CheckSignals() != 0) throw py::error_already_set();
      crew_.check();
    }
  }

 private:
  using Time = std::chrono::steady_clock::time_point;

  // Copies pieces. Returns false if it stops because the time `end` has passed.
  bool work(Time end) {
    for (size_t i = next_++; i < pieces_.size(); i = next_++) {
      copy(parts_, pieces_[i]);
      if (std::chrono::steady_clock::now() > end) return false;
    }
    return true;
  }

  const std::vector<Bytes> parts_;
  const std::vector<Piece> pieces_;
  std::atomic<size_t> next_ = 0;  // index of the next piece to copy
  core::Crew crew_;               // the threads besides the calling thread
};

at::Tensor view_like(const at::Tensor& original, at::Storage storage, size_t begin) {
  at::Tensor made = at::detail::make_tensor<c10::TensorImpl>(std::move(storage), original.key_set(),
                                                             original.dtype());
  const auto before = static_cast<int64_t>(begin / original.itemsize());
  const int64_t offset = original.numel() == 0 ? 0 : original.storage_offset() - before;
  made.unsafeGetTensorImpl()->set_sizes_and_strides(original.sizes(), original.strides(), offset);
  return made;
}

// Owns the copies created so far. Must outlive Filling, because its threads may still write to the
// storages after an error.
struct Made {
  at::Storage latest;  // storage of the copy for which an object is being created
  py::list result;
};

py::object make_object(Originals& originals, uint32_t index, Made& made) {
  const auto& [object, tensor, part_index, as_parameter] = originals.tensors[index];
  Part& part = originals.parts[part_index];
  made.latest = part.copy;
  if (index == part.last) part.copy = at::Storage();
  at::Tensor copy = view_like(*tensor, made.latest, part.begin);
  return to_python(std::move(copy), as_parameter, tensor->requires_grad());
}

// Creates the Python objects for the copies; None for values that Python copies.
void make_objects(const std::vector<uint32_t>& indices, Originals& originals, Made& made) {
  const auto& tensors = originals.tensors;
  std::vector<PyObject*> objects(tensors.size());  // borrowed from the list
  for (size_t i = 0; i < indices.size(); ++i) {
    py::object item = py::none();
    if (const uint32_t index = indices[i]; index != Originals::kElsewhere) {
      if (index + kAhead < tensors.size()) {
        prefetch(tensors[index + kAhead].tensor->unsafeGetTensorImpl(), sizeof(c10::TensorImpl));
      }
      item = objects[index] != nullptr ? py::reinterpret_borrow<py::object>(objects[index])
                                       : make_object(originals, index, made);
      objects[index] = item.ptr();
    }
    PyList_SET_ITEM(made.result.ptr(), static_cast<Py_ssize_t>(i), item.release().ptr());
  }
}

// Returns the copies in the order of `values`; None for values that Python copies. Ends `pause`
// before it releases the GIL. Until then no Python code runs, so the list does not change.
py::list copy_all(const py::list& values, const std::vector<uint32_t>& indices,
                  Originals& originals, std::optional<GcPause>& pause) {
  std::vector<Bytes> bytes = allocate(originals.parts);
  const bool release = total_of(bytes) > kWorthRelease;
  // Keep the values and storages alive, because other Python threads may change the list, or give a
  // tensor another storage. As in torch, they must not resize a storage.
  py::object held;
  std::vector<at::Storage> kept;
  if (release) {
    held = py::reinterpret_steal<py::object>(PySequence_List(values.ptr()));
    if (!held) throw py::error_already_set();
    for (const Part& part : originals.parts) {
      kept.emplace_back(c10::intrusive_ptr<c10::StorageImpl>::reclaim_copy(part.original));
    }
  }
  Made made{{}, py::list(indices.size())};
  Filling filling(std::move(bytes));
  make_objects(indices, originals, made);
  pause.reset();
  filling.finish(release);
  return std::move(made.result);
}

// Whether Tensor.clone() would copy the bytes and strides, and record no autograd history.
bool is_cloned_bytewise(const at::Tensor& tensor, bool as_parameter) {
  return tensor.numel() != 0 && tensor.is_non_overlapping_and_dense() && !tensor.is_conj() &&
         !tensor.is_neg() && (as_parameter || !tensor.requires_grad());
}

// Returns add(i, value) for each item of a list: its index in Originals::tensors, or kElsewhere.
template <class Add>
std::vector<uint32_t> add_values(const py::list& values, Add add) {
  const size_t count = values.size();
  std::vector<uint32_t> indices;
  indices.reserve(count);
  for (size_t i = 0; i < count; ++i) {
    prefetch_tensors(values.ptr(), i);
    indices.push_back(add(i, PyList_GET_ITEM(values.ptr(), static_cast<Py_ssize_t>(i))));
  }
  return indices;
}

}  // namespace

std::pair<py::list, py::dict> clone_aliased(const py::list& values) {
  const bool observed = copies_are_observed();
  std::optional<GcPause> pause(std::in_place);
  py::dict others;
  Originals originals(values.size());
  const std::vector<uint32_t> indices = add_values(values, [&](size_t i, PyObject* value) {
    if (!is_tensor(value)) {
      throw py::type_error(std::string("expected tensors, got a ") + Py_TYPE(value)->tp_name);
    }
    if (is_copied_here(value, observed)) return originals.add(value);
    others[py::int_(i)] = py::handle(value);
    return Originals::kElsewhere;
  });
  return {copy_all(values, indices, originals, pause), std::move(others)};
}

py::list clone_separately(const py::list& values, const std::vector<bool>& parameters) {
  const bool observed = copies_are_observed();
  if (parameters.size() != values.size()) {
    throw py::value_error("expected " + std::to_string(values.size()) + " flags, got " +
                          std::to_string(parameters.size()));
  }
  std::optional<GcPause> pause(std::in_place);
  Originals originals(values.size());
  const std::vector<uint32_t> indices = add_values(values, [&](size_t i, PyObject* value) {
    const bool is_here = is_copied_here(value, observed) &&
                         is_cloned_bytewise(THPVariable_Unpack(value), parameters[i]);
    return is_here ? originals.add_alone(value, parameters[i]) : Originals::kElsewhere;
  });
  return copy_all(values, indices, originals, pause);
}

}  // namespace fxpress::tensor
