// Classifies Python's tensors (plain, parameter), creates parameters, and checks whether modes
// observe operations on tensors.
#pragma once

#include <ATen/ATen.h>
#include <c10/core/impl/LocalDispatchKeySet.h>
#include <c10/core/impl/TorchDispatchModeTLS.h>
#include <torch/csrc/autograd/python_variable.h>
#include <torch/csrc/utils/pybind.h>

#include <utility>

namespace fxpress::tensor {

// Whether a tensor is strided and has a storage and sizes without symbols.
inline bool is_plain(const at::Tensor& tensor) {
  return tensor.has_storage() && tensor.layout() == at::kStrided &&
         !tensor.unsafeGetTensorImpl()->has_symbolic_sizes_strides();
}

// Whether a tensor's elements are the bytes of its storage, unlike quantized or nested tensors.
inline bool is_only_a_view(const at::Tensor& tensor) {
  return is_plain(tensor) && !tensor.is_quantized() && !tensor.is_nested() &&
         !tensor._is_zerotensor() && !tensor.key_set().has(c10::DispatchKey::Functionalize);
}

// Returns nn.Parameter(data, requires_grad) for a plain tensor that was just created.
inline pybind11::object make_parameter(const at::Tensor& data, bool requires_grad) {
  data.unsafeGetTensorImpl()->set_allow_tensor_metadata_change(true);
  data.set_requires_grad(requires_grad);
  PyObject* parameter = THPVariable_Wrap(data, reinterpret_cast<PyTypeObject*>(ParameterClass));
  if (parameter == nullptr) throw pybind11::error_already_set();
  return pybind11::reinterpret_steal<pybind11::object>(parameter);
}

// Returns the Python object of a tensor that was just created and has no other reference.
inline pybind11::object to_python(at::Tensor made, bool is_parameter, bool requires_grad) {
  if (is_parameter) return make_parameter(made, requires_grad);
  if (requires_grad) made.set_requires_grad(true);
  return pybind11::reinterpret_steal<pybind11::object>(THPVariable_Wrap(std::move(made)));
}

// Whether a value is exactly a Parameter, not a subclass.
inline bool is_parameter(PyObject* value) {
  return reinterpret_cast<PyObject*>(Py_TYPE(value)) == ParameterClass;
}

// Whether a value is exactly a Tensor or a Parameter, not a subclass.
inline bool is_plain_class(PyObject* value) {
  return THPVariable_CheckExact(value) || is_parameter(value);
}

// Whether modes or functionalization intercept operators. If so, torch must make the copies.
inline bool copies_are_observed() {
  return c10::impl::TorchDispatchModeTLS::any_modes_set() ||
         c10::impl::tls_is_dispatch_key_included(c10::DispatchKey::Functionalize);
}

}  // namespace fxpress::tensor
