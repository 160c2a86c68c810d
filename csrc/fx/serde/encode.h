// Exported programs, and parts of them, to JSON bytes.
#pragma once

#include "fx/py.h"
#include "fx/serde/encoder.h"

namespace fxpress::fx::serde {

// The bytes of a program; see Encoder::program() for the arguments. None: it may not be valid.
Ref encode_program(const Schema& schema, PyObject* graph_module, PyObject* signature,
                   PyObject* calls, PyObject* facts, const EncodeContext& context);

// The bytes of a tensor's metadata.
Ref encode_tensor_meta(const Schema& schema, PyObject* tensor);

// JSON read and written again: the schema decides what is read. SerializeError names the place.
Ref rewrite_json(const Schema& schema, PyObject* bytes, const std::string& type);

}  // namespace fxpress::fx::serde
