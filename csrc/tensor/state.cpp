#include "tensor/state.h"

#include <c10/core/impl/LocalDispatchKeySet.h>
#include <c10/core/impl/TorchDispatchModeTLS.h>
#include <torch/csrc/autograd/python_variable.h>

#include <string>
#include <unordered_map>

namespace fxpress::tensor {

namespace py = pybind11;

namespace {

// The bytes that tell data apart. A tensor without a plain storage is told by itself.
std::string identity(PyObject* value) {
  std::string key;
  const auto append = [&](int64_t number) {
    key.append(reinterpret_cast<const char*>(&number), sizeof(number));
  };
  const auto append_pointer = [&](const void* pointer) {
    append(static_cast<int64_t>(reinterpret_cast<intptr_t>(pointer)));
  };
  if (!THPVariable_Check(value)) {
    append_pointer(value);
    return key;
  }
  const at::Tensor& tensor = THPVariable_Unpack(value);
  const bool is_plain = tensor.has_storage() && tensor.layout() == at::kStrided &&
                        !tensor.unsafeGetTensorImpl()->has_symbolic_sizes_strides();
  if (!is_plain) {
    append_pointer(tensor.unsafeGetTensorImpl());
    return key;
  }
  append_pointer(tensor.storage().unsafeGetStorageImpl());
  append(static_cast<int64_t>(tensor.scalar_type()));
  append(tensor.storage_offset());
  append((tensor.is_conj() ? 1 : 0) + (tensor.is_neg() ? 2 : 0));  // read through another lens
  for (int64_t size : tensor.sizes()) append(size);
  for (int64_t stride : tensor.strides()) append(stride);
  return key;
}

// nn.Parameter(data, requires_grad): what its constructor makes of a plain tensor of its own.
py::object make_parameter(const at::Tensor& data, bool requires_grad) {
  data.unsafeGetTensorImpl()->set_allow_tensor_metadata_change(true);
  data.set_requires_grad(requires_grad);
  PyObject* parameter = THPVariable_Wrap(data, reinterpret_cast<PyTypeObject*>(ParameterClass));
  if (parameter == nullptr) throw py::error_already_set();
  return py::reinterpret_steal<py::object>(parameter);
}

bool is_plain_class(PyObject* value) {
  return THPVariable_CheckExact(value) ||
         reinterpret_cast<PyObject*>(Py_TYPE(value)) == ParameterClass;
}

}  // namespace

std::vector<int64_t> same_data(const std::vector<py::object>& values) {
  std::unordered_map<std::string, int64_t> first;
  std::vector<int64_t> result;
  result.reserve(values.size());
  for (const py::object& value : values) {
    const auto position = static_cast<int64_t>(result.size());
    result.push_back(first.emplace(identity(value.ptr()), position).first->second);
  }
  return result;
}

py::list clone_tensors(const std::vector<py::object>& values, const std::vector<bool>& parameters) {
  // Modes and tracers want to see every copy: they get Python calls.
  const bool is_watched = c10::impl::TorchDispatchModeTLS::any_modes_set() ||
                          c10::impl::tls_is_dispatch_key_included(c10::DispatchKey::Functionalize);
  std::vector<at::Tensor> copies(values.size());
  for (size_t i = 0; i < values.size(); ++i) {
    if (!is_watched && is_plain_class(values[i].ptr())) {
      copies[i] = THPVariable_Unpack(values[i].ptr());
    }
  }
  {
    const py::gil_scoped_release release;
    for (size_t i = 0; i < copies.size(); ++i) {
      if (!copies[i].defined()) continue;
      copies[i] = parameters[i] ? copies[i].detach().clone() : copies[i].clone();
    }
  }
  py::list result(values.size());
  for (size_t i = 0; i < copies.size(); ++i) {
    py::object item = py::none();
    if (copies[i].defined() && parameters[i]) {
      const bool requires_grad = THPVariable_Unpack(values[i].ptr()).requires_grad();
      item = make_parameter(copies[i], requires_grad);
    } else if (copies[i].defined()) {
      item = py::reinterpret_steal<py::object>(THPVariable_Wrap(copies[i]));
    }
    result[i] = std::move(item);
  }
  return result;
}

}  // namespace fxpress::tensor
