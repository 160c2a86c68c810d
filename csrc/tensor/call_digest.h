// Computes bytes that identify the arguments of a call on fake tensors.
#pragma once

#include <torch/csrc/python_headers.h>

namespace fxpress::tensor {

// Returns the types and values of constants and the metadata of fake tensors, as bytes. If two
// calls have equal bytes, torch's cache of fake tensors has one key for both. Returns None if an
// argument is something else, has symbolic sizes, or is not a plain fake tensor of the mode. The
// reference is new; nullptr: a Python exception is set.
PyObject* call_digest(PyObject* mode, PyObject* fake_class, PyObject* args, PyObject* kwargs);

}  // namespace fxpress::tensor
