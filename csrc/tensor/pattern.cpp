#include "tensor/pattern.h"

#include <c10/core/Allocator.h>
#include <c10/core/StorageImpl.h>

namespace fxpress::tensor {

namespace {

at::Storage storage_like(const at::Tensor& pattern) {
  return at::Storage(c10::make_intrusive<c10::StorageImpl>(
      c10::StorageImpl::use_byte_size_t(), pattern.storage().sym_nbytes(),
      c10::GetAllocator(c10::DeviceType::Meta), /*resizable=*/true));
}

}  // namespace

at::Tensor like_pattern(const at::Tensor& pattern, const std::optional<at::Storage>& storage) {
  auto made = pattern.unsafeGetTensorImpl()->shallow_copy_and_detach(
      c10::VariableVersion(0), /*allow_tensor_metadata_change=*/true);
  made->set_storage_keep_dtype(storage ? *storage : storage_like(pattern));
  return at::Tensor(std::move(made));
}

}  // namespace fxpress::tensor
