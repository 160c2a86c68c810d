// The module fxpress._aten_ext: what needs libtorch. Built for one torch minor version; the Python
// module fxpress._aten checks that version before it loads this one.

#include <ATen/ATen.h>
#include <torch/csrc/autograd/python_variable.h>
#include <torch/csrc/utils/pybind.h>

#include <cstdint>
#include <unordered_set>
#include <vector>

#include "engine/bind.h"
#include "tensor/clone.h"
#include "tensor/facts.h"
#include "tensor/state.h"
#include "tensor/storages.h"

namespace py = pybind11;

namespace {

// Bytes that the tensors' storages occupy, shared ones counted once. Views of one storage share it;
// tensors without storage (sparse, meta-free wrappers) count nothing.
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

py::dict build_info() {
  py::dict info;
  info["version"] = FXPRESS_VERSION;
  info["compiler"] = __VERSION__;
  info["cplusplus"] = static_cast<long>(__cplusplus);
  info["build_type"] = FXPRESS_BUILD_TYPE;
  info["pybind11"] = PYBIND11_TOSTRING(PYBIND11_VERSION_MAJOR) "." PYBIND11_TOSTRING(
      PYBIND11_VERSION_MINOR) "." PYBIND11_TOSTRING(PYBIND11_VERSION_MICRO);
  info["torch"] = FXPRESS_TORCH_VERSION;
  return info;
}

}  // namespace

PYBIND11_MODULE(_aten_ext, m) {
  m.doc() = "fxpress: tensors and state, against libtorch.";
  m.def("build_info", build_info);
  m.def("storage_bytes", storage_bytes);
  m.def("same_data", fxpress::tensor::same_data);
  m.def("clone_aliased", fxpress::tensor::clone_aliased);
  m.def("clone_separately", fxpress::tensor::clone_separately);
  m.def("storage_places", fxpress::tensor::storage_places);
  m.def("storages_of", fxpress::tensor::storages_of);
  m.def("allocate_bytes", fxpress::tensor::allocate_bytes);
  m.def("make_views", fxpress::tensor::make_views);
  // How _native reads tensors, which it has no headers for.
  m.attr("tensor_facts") = py::capsule(reinterpret_cast<void*>(&fxpress::tensor::read_facts),
                                       fxpress::core::kTensorFactsCapsule);
  fxpress::engine::bind(m);
}
