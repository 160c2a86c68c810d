// Exported programs, and parts of them, to JSON bytes.
#pragma once

#include "fx/py.h"
#include "fx/serde/encoder.h"
#include "fx/serde/objects.h"

namespace fxpress::fx::serde {

// The bytes of a program; see Encoder::program() for the arguments. None: it may not be valid.
Ref encode_program(const Schema& schema, PyObject* graph_module, PyObject* signature,
                   PyObject* calls, PyObject* facts, const EncodeContext& context);

// The bytes of a tensor's metadata.
Ref encode_tensor_meta(const Schema& schema, PyObject* tensor);

// JSON read and written again: the schema decides what is read. SerializeError names the place.
Ref rewrite_json(const Schema& schema, PyObject* bytes, const std::string& type);

// JSON to objects of the schema's classes, and back.
Ref read_objects(const Schema& schema, const SchemaClasses& classes, PyObject* bytes,
                 const std::string& type);
Ref write_objects(const SchemaClasses& classes, PyObject* object);

}  // namespace fxpress::fx::serde
