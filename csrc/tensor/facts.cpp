#include "tensor/facts.h"

#include <torch/csrc/Dtype.h>
#include <torch/csrc/DynamicTypes.h>
#include <torch/csrc/autograd/python_variable.h>

namespace fxpress::tensor {

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

}  // namespace fxpress::tensor
