// Errors of encoding and decoding.
#pragma once

#include "py/object.h"

namespace fxpress::serde {

// Raises SerializeError that names the node, from an error that was raised while it was written.
// Signals and exits (what is not an Exception) pass as they are.
[[noreturn]] void node_failed(PyObject* node, pybind11::error_already_set& error);

// Whether the tables of torch's objects are filled. Files can be read without.
bool has_torch();

// The type of errors about files: SerializeError, or ValueError without torch. Borrowed.
PyObject* damage_error();

// Thrown instead of an error when the program may not be valid: torch's verifier is asked first.
struct Doubtful {};

}  // namespace fxpress::serde
