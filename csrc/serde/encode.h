// Exported programs, and parts of them, to JSON bytes.
#pragma once

#include "py/object.h"
#include "schema/document.h"
#include "serde/encoding.h"
#include "serde/objects.h"

namespace fxpress::serde {

// Returns the bytes of a program; see ProgramEncoder for the arguments. Returns None when the
// program may not be valid.
Ref encode_program(const Schema& schema, PyObject* graph_module, PyObject* signature,
                   PyObject* calls, PyObject* facts, const EncodeContext& context);

// Returns a program as a document, without the metadata of nodes, and without a check.
schema::Document encode_document(const Schema& schema, PyObject* graph_module, PyObject* signature,
                                 PyObject* calls, PyObject* facts, const EncodeContext& context);

// A part of a program as a document: "argument" (value, type), "inputs" (described operator, args,
// kwargs), "node", "outputs", "metadata" (node), "graph" (graph module), "signature", "input_spec",
// "output_spec", "argument_spec", "call_signature", "call"; see PartEncoder.
schema::Document encode_part(const Schema& schema, const std::string& kind, PyObject* values,
                             const EncodeContext& context, PyObject* results, PyObject* merged);

// The bytes of a tensor's metadata.
Ref encode_tensor_meta(const Schema& schema, PyObject* tensor);

// The bytes of a payload config; see write_payload_config().
Ref encode_payload_config(const Schema& schema, PyObject* entries);

// The bytes of an object of the schema; TypeError where it is not as the schema says.
Ref write_objects(const SchemaClasses& classes, PyObject* object);

}  // namespace fxpress::serde
