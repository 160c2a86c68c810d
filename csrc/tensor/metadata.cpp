#include "tensor/metadata.h"

#include <c10/core/Allocator.h>
#include <c10/core/StorageImpl.h>
#include <c10/core/impl/LocalDispatchKeySet.h>
#include <torch/csrc/Dtype.h>
#include <torch/csrc/DynamicTypes.h>
#include <torch/csrc/Exceptions.h>
#include <torch/csrc/autograd/python_variable.h>
#include <torch/csrc/autograd/variable.h>

#include <cstdint>
#include <memory>

namespace fxpress::tensor {

namespace {

at::Storage make_storage(const c10::SymInt& bytes) {
  return at::Storage(c10::make_intrusive<c10::StorageImpl>(
      c10::StorageImpl::use_byte_size_t(), bytes, c10::GetAllocator(c10::DeviceType::Meta),
      /*resizable=*/true));
}

// Accesses TensorImpl::extra_meta_, which is protected.
struct Protected : c10::TensorImpl {
  static std::unique_ptr<c10::SymbolicShapeMeta>& place_of(c10::TensorImpl& impl) {
    return (impl.*(&Protected::extra_meta_))->symbolic_shape_meta_;
  }
  static c10::SymbolicShapeMeta& shape_of(c10::TensorImpl& impl) { return *place_of(impl); }
};

// Accesses SymbolicShapeMeta::numel_. It is private, but an explicit instantiation may name it.
c10::SymInt& elements_of(c10::SymbolicShapeMeta& shape);
template <auto Member>
struct Private {
  friend c10::SymInt& elements_of(c10::SymbolicShapeMeta& shape) { return shape.*Member; }
};
template struct Private<&c10::SymbolicShapeMeta::numel_>;

// Replaces the SymInts in `shape` by `numbers` with equal values. Keeps ints, because torch stores
// a SymInt whose expression is constant as an int.
void set_numbers(c10::SymbolicShapeMeta& shape, const Numbers& numbers) {
  const auto replace = [](c10::SymInt& old, const c10::SymInt& number) {
    if (old.is_heap_allocated()) old = number;
  };
  for (size_t i = 0; i < numbers.sizes.size(); ++i) {
    replace(shape.sizes_[i], numbers.sizes[i]);
    replace(shape.strides_[i], numbers.strides[i]);
  }
  replace(shape.storage_offset_, numbers.offset);
}

// Sets the flags of a fake tensor, like Tensor._make_subclass, so that torch calls Python code for
// the operators and the device of `made`. The caller creates the Python object.
void make_fake(const at::Tensor& made, bool protects) {
  made.unsafeGetTensorImpl()->set_python_dispatch(true);
  made.unsafeGetTensorImpl()->set_python_custom_device(true);
  if (protects) made.storage().unsafeGetStorageImpl()->set_throw_on_mutable_data_ptr();
}

const c10::SymbolicShapeMeta& symbolic_shape_of(const at::Tensor& tensor) {
  c10::TensorImpl& impl = *tensor.unsafeGetTensorImpl();
  TORCH_CHECK_VALUE(impl.has_symbolic_sizes_strides(), "the tensor has no symbolic sizes");
  return Protected::shape_of(impl);
}

}  // namespace

at::Tensor like_pattern(const at::Tensor& pattern, const std::optional<at::Storage>& storage) {
  auto made = pattern.unsafeGetTensorImpl()->shallow_copy_and_detach(
      c10::VariableVersion(0), /*allow_tensor_metadata_change=*/true);
  made->set_storage_keep_dtype(storage ? *storage : make_storage(pattern.storage().sym_nbytes()));
  return at::Tensor(std::move(made));
}

at::Tensor make_meta(const Numbers& numbers, at::ScalarType dtype,
                     const std::optional<at::Storage>& storage) {
  TORCH_CHECK_VALUE(numbers.sizes.size() == numbers.strides.size(),
                    "expected as many strides as sizes");
  at::Storage used = storage ? *storage : make_storage(numbers.bytes);
  auto made = c10::make_intrusive<c10::TensorImpl>(std::move(used),
                                                   c10::DispatchKeySet(c10::DispatchKey::Meta),
                                                   c10::scalarTypeToTypeMeta(dtype));
  made->set_sizes_and_strides(numbers.sizes, numbers.strides, numbers.offset);
  return at::Tensor(std::move(made));
}

bool read_facts(void* object, core::TensorFacts* facts) {
  const at::Tensor& tensor = THPVariable_Unpack(static_cast<PyObject*>(object));
  if (tensor.layout() != at::kStrided ||
      tensor.unsafeGetTensorImpl()->has_symbolic_sizes_strides()) {
    return false;
  }
  facts->sizes = tensor.sizes().data();
  facts->strides = tensor.strides().data();
  facts->dims = static_cast<size_t>(tensor.dim());
  facts->storage_offset = tensor.storage_offset();
  facts->dtype = torch::getTHPDtype(tensor.scalar_type());
  facts->requires_grad = tensor.requires_grad();
  return true;
}

void* fake_like(void* object, void* storage, bool protects) {
  HANDLE_TH_ERRORS
  auto* like = static_cast<PyObject*>(object);
  std::optional<at::Storage> shared;
  if (storage != nullptr) shared = torch::createStorage(static_cast<PyObject*>(storage));
  const at::Tensor& fake = THPVariable_Unpack(like);
  // Copy the tensor itself, without calling its class or a mode.
  const c10::impl::ExcludeDispatchKeyGuard no_python(c10::python_ks);
  const at::Tensor made = like_pattern(fake, shared);
  made.set_requires_grad(fake.requires_grad());
  make_fake(made, protects);
  return THPVariable_Wrap(made, Py_TYPE(like));
  END_HANDLE_TH_ERRORS
}

PyObject* fake_result(PyObject* fake, const std::optional<at::Tensor>& base,
                      const std::optional<at::Tensor>& edge, const std::optional<Numbers>& numbers,
                      bool protects) {
  const c10::impl::ExcludeDispatchKeyGuard no_python(c10::python_ks);
  std::optional<at::Storage> storage;
  if (base) storage = base->storage();
  if (!base && numbers) storage = make_storage(numbers->bytes);
  const at::Tensor made = like_pattern(THPVariable_Unpack(fake), storage);
  if (numbers) {
    auto& shape = Protected::shape_of(*made.unsafeGetTensorImpl());
    set_numbers(shape, *numbers);
    shape.refresh_numel();
  }
  make_fake(made, protects);
  if (edge) share_gradient_edge(made, *edge);
  return THPVariable_Wrap(made, Py_TYPE(fake));
}

int known_layout(const at::Tensor& tensor) {
  c10::TensorImpl& impl = *tensor.unsafeGetTensorImpl();
  if (!impl.has_symbolic_sizes_strides()) return 0;
  const c10::SymbolicShapeMeta& shape = Protected::shape_of(impl);
  int bits = shape.has_numel() ? 1 : 0;
  const auto add = [&bits](int bit, bool is_known, auto fact) {
    if (is_known) bits |= bit | (fact().is_heap_allocated() ? kUndecided : 0);
  };
  add(2, shape.has_is_contiguous(), [&] { return shape.is_contiguous(); });
  add(4, shape.has_is_channels_last_contiguous(),
      [&] { return shape.is_channels_last_contiguous(); });
  add(8, shape.has_is_channels_last_3d_contiguous(),
      [&] { return shape.is_channels_last_3d_contiguous(); });
  add(16, shape.has_is_channels_last(), [&] { return shape.is_channels_last(); });
  add(32, shape.has_is_channels_last_3d(), [&] { return shape.is_channels_last_3d(); });
  add(64, shape.has_is_non_overlapping_and_dense(),
      [&] { return shape.is_non_overlapping_and_dense(); });
  return bits;
}

Layout::Layout(const at::Tensor& tensor) : shape_(symbolic_shape_of(tensor)) {}

void Layout::give(const at::Tensor& tensor, const Numbers& numbers,
                  const c10::SymInt& elements) const {
  symbolic_shape_of(tensor);
  TORCH_CHECK_VALUE(numbers.sizes.size() == shape_.sizes_.size() &&
                        numbers.strides.size() == shape_.sizes_.size(),
                    "expected as many sizes and strides as the layout has");
  auto shape = std::make_unique<c10::SymbolicShapeMeta>(shape_);
  set_numbers(*shape, numbers);
  elements_of(*shape) = elements;
  Protected::place_of(*tensor.unsafeGetTensorImpl()) = std::move(shape);
}

void share_gradient_edge(const at::Tensor& made, const at::Tensor& like) {
  const auto& function = like.grad_fn();
  if (!function) {
    made.set_requires_grad(like.requires_grad());
    return;
  }
  torch::autograd::impl::set_gradient_edge(made,
                                           {function, static_cast<uint32_t>(like.output_nr())});
}

}  // namespace fxpress::tensor
