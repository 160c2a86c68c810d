#include "tensor/call_digest.h"

#include <ATen/ATen.h>
#include <torch/csrc/Device.h>
#include <torch/csrc/Dtype.h>
#include <torch/csrc/Layout.h>
#include <torch/csrc/MemoryFormat.h>
#include <torch/csrc/Size.h>
#include <torch/csrc/autograd/python_variable.h>

#include <cmath>
#include <cstdint>
#include <string>

#include "tensor/python_tensors.h"

namespace fxpress::tensor {

namespace {

class Digest {
 public:
  Digest(PyObject* mode, PyObject* fake_class) : mode_(mode), fake_class_(fake_class) {}

  // Appends a value; returns false for an unsupported value.
  bool append(PyObject* value) {
    PyTypeObject* type = Py_TYPE(value);
    if (reinterpret_cast<PyObject*>(type) == fake_class_) return append_fake(value);
    if (value == Py_None) return tag('N');
    if (type == &PyBool_Type) return tag(value == Py_True ? 'T' : 'F');
    if (type == &PyLong_Type) return append_int(value);
    if (type == &PyFloat_Type) return append_float(PyFloat_AS_DOUBLE(value));
    if (type == &PyUnicode_Type) return append_text(value);
    if (type == &PyTuple_Type) return append_items('(', value);
    if (type == &THPSizeType) return append_items('S', value);
    if (type == &PyList_Type) return append_items('[', value);
    if (type == &PyDict_Type) return append_dict(value);
    if (THPDtype_Check(value)) {
      return tag('y') && number(reinterpret_cast<THPDtype*>(value)->scalar_type);
    }
    if (THPDevice_Check(value)) return append_device(value);
    if (THPLayout_Check(value)) {
      return tag('l') && number(reinterpret_cast<THPLayout*>(value)->layout);
    }
    if (THPMemoryFormat_Check(value)) {
      return tag('m') && number(reinterpret_cast<THPMemoryFormat*>(value)->memory_format);
    }
    return false;
  }

  PyObject* bytes() const {
    return PyBytes_FromStringAndSize(text_.data(), static_cast<Py_ssize_t>(text_.size()));
  }

 private:
  bool tag(char kind) {
    text_.push_back(kind);
    return true;
  }

  template <typename T>
  bool number(T value) {
    text_.append(reinterpret_cast<const char*>(&value), sizeof value);
    return true;
  }

  bool append_int(PyObject* value) {
    int overflow = 0;
    const int64_t integer = PyLong_AsLongLongAndOverflow(value, &overflow);
    return overflow == 0 && tag('i') && number(integer);
  }

  bool append_float(double value) {
    return !std::isnan(value) && tag('f') && number(value);  // torch's keys with nan are unequal
  }

  bool append_text(PyObject* value) {
    Py_ssize_t size = 0;
    const char* data = PyUnicode_AsUTF8AndSize(value, &size);
    if (data == nullptr) {
      PyErr_Clear();
      return false;
    }
    tag('s');
    number(size);
    text_.append(data, static_cast<size_t>(size));
    return true;
  }

  bool append_items(char kind, PyObject* sequence) {
    const Py_ssize_t size = PySequence_Fast_GET_SIZE(sequence);
    tag(kind);
    number(size);
    for (Py_ssize_t i = 0; i < size; ++i) {
      if (!append(PySequence_Fast_GET_ITEM(sequence, i))) return false;
    }
    return true;
  }

  bool append_dict(PyObject* dict) {
    tag('{');
    number(PyDict_GET_SIZE(dict));
    PyObject* key = nullptr;
    PyObject* value = nullptr;
    Py_ssize_t position = 0;
    while (PyDict_Next(dict, &position, &key, &value) != 0) {
      if (!append(key) || !append(value)) return false;
    }
    return true;
  }

  bool append_device(PyObject* value) {
    const c10::Device device = reinterpret_cast<THPDevice*>(value)->device;
    // An accelerator without an index is the current device, which may change between calls.
    if (!device.has_index() && !device.is_cpu() && !device.is_meta()) return false;
    return tag('v') && number(device.type()) && number(device.index());
  }

  bool append_fake(PyObject* value) {
    const at::Tensor& fake = THPVariable_Unpack(value);
    if (!is_plain(fake)) return false;
    const auto attributes =
        pybind11::reinterpret_steal<pybind11::object>(PyObject_GenericGetDict(value, nullptr));
    if (!attributes) {
      PyErr_Clear();
      return false;
    }
    PyObject* device = PyDict_GetItemString(attributes.ptr(), "_fake_device");
    const bool is_ours = PyDict_GetItemString(attributes.ptr(), "fake_mode") == mode_ &&
                         PyDict_GetItemString(attributes.ptr(), "constant") == Py_None;
    if (!is_ours || device == nullptr || !THPDevice_Check(device)) return false;
    const auto nbytes = fake.unsafeGetTensorImpl()->unsafe_storage().sym_nbytes().maybe_as_int();
    if (!nbytes.has_value()) return false;
    tag('t');
    number(fake.dim());
    for (const int64_t size : fake.sizes()) number(size);
    for (const int64_t stride : fake.strides()) number(stride);
    number(fake.storage_offset());
    number(*nbytes);
    number(fake.scalar_type());
    number(fake.requires_grad());
    number(fake.key_set().raw_repr());  // conjugate, negative, quantized, inference
    return append(device);
  }

  PyObject* mode_;
  PyObject* fake_class_;
  std::string text_;
};

}  // namespace

PyObject* call_digest(PyObject* mode, PyObject* fake_class, PyObject* args, PyObject* kwargs) {
  Digest digest(mode, fake_class);
  if (!digest.append(args) || !digest.append(kwargs)) Py_RETURN_NONE;
  return digest.bytes();
}

}  // namespace fxpress::tensor
