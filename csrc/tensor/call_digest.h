// Computes a text of bytes that identifies the arguments of a call on fake tensors.
#pragma once

#include <torch/csrc/python_headers.h>

namespace fxpress::tensor {

// Returns bytes that are equal for two calls only if torch's cache of fake tensors has one key for
// both: the types and values of constants, and the metadata of fake tensors. Returns None, as a new
// reference, if an argument is something else, has symbolic sizes, or is not a plain fake tensor of
// the mode. nullptr: a Python exception is set.
PyObject* call_digest(PyObject* mode, PyObject* fake_class, PyObject* args, PyObject* kwargs);

}  // namespace fxpress::tensor
