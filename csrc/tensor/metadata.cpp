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

namespace fxpress::tensor {

namespace {

at::Storage make_storage(const c10::SymInt& bytes) {
  return at::Storage(c10::make_intrusive<c10::StorageImpl>(
      c10::StorageImpl::use_byte_size_t(), bytes, c10::GetAllocator(c10::DeviceType::Meta),
      /*resizable=*/true));
}

// Accesses TensorImpl::extra_meta_, which is protected.
struct Protected : c10::TensorImpl {
  static c10::SymbolicShapeMeta& shape_of(c10::TensorImpl& impl) {
    return *(impl.*(&Protected::extra_meta_))->symbolic_shape_meta_;
  }
};

// Copies a fake tensor like Tensor._make_subclass. torch calls Python code for the operators and
// the device of the copy.
at::Tensor copy_of(PyObject* object, const std::optional<at::Storage>& storage, bool protects) {
  const at::Tensor& fake = THPVariable_Unpack(object);
  // Copy the tensor itself, without calling its class or a mode.
  const c10::impl::ExcludeDispatchKeyGuard no_python(c10::python_ks);
  at::Tensor made = like_pattern(fake, storage);
  made.set_requires_grad(fake.requires_grad());
  made.unsafeGetTensorImpl()->set_python_dispatch(true);
  made.unsafeGetTensorImpl()->set_python_custom_device(true);
  if (protects) made.storage().unsafeGetStorageImpl()->set_throw_on_mutable_data_ptr();
  return made;
}

}  // namespace

at::Tensor like_pattern(const at::Tensor& pattern, const std::optional<at::Storage>& storage) {
  auto made = pattern.unsafeGetTensorImpl()->shallow_copy_and_detach(
      c10::VariableVersion(0), /*allow_tensor_metadata_change=*/true);
  made->set_storage_keep_dtype(storage ? *storage : make_storage(pattern.storage().sym_nbytes()));
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

void* fake_like(void* fake, void* storage, bool protects) {
  HANDLE_TH_ERRORS
  auto* like = static_cast<PyObject*>(fake);
  std::optional<at::Storage> shared;
  if (storage != nullptr) shared = torch::createStorage(static_cast<PyObject*>(storage));
  const at::Tensor made = copy_of(like, shared, protects);
  return THPVariable_Wrap(made, Py_TYPE(like));
  END_HANDLE_TH_ERRORS
}

PyObject* fake_with_numbers(PyObject* fake, const std::optional<at::Storage>& storage,
                            const c10::SymInt& bytes, const std::vector<c10::SymInt>& sizes,
                            const std::vector<c10::SymInt>& strides, const c10::SymInt& offset,
                            bool protects) {
  const at::Tensor made = copy_of(fake, storage ? *storage : make_storage(bytes), protects);
  auto& shape = Protected::shape_of(*made.unsafeGetTensorImpl());
  shape.sizes_ = c10::SymDimVector(sizes.begin(), sizes.end());
  shape.strides_ = c10::SymDimVector(strides.begin(), strides.end());
  shape.storage_offset_ = offset;
  shape.refresh_numel();
  return THPVariable_Wrap(made, Py_TYPE(fake));
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
