// Computes bytes that identify the arguments of a call on fake tensors.
#pragma once

#include <torch/csrc/python_headers.h>

namespace fxpress::tensor {

// Encodes the types and values of constants, and the metadata of fake tensors. Calls with equal
// bytes have the same key in torch's cache of fake tensors. Returns None if an argument is neither
// a constant nor a plain fake tensor of the mode, or has symbolic sizes. Returns a new reference,
// or nullptr after a Python exception.
PyObject* call_digest(PyObject* mode, PyObject* fake_class, PyObject* args, PyObject* kwargs);

}  // namespace fxpress::tensor
