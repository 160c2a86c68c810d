// Reads and writes the entries of an archive for weights and constants: which record has which
// tensor.
#pragma once

#include "py/object.h"
#include "schema/document.h"
#include "serde/encoding.h"

namespace fxpress::serde {

// Writes a value of the type PayloadConfig. entries: [(name, record, tensor or None, is a
// parameter, is pickled)].
void write_payload_config(Encoding& to, PyObject* entries);

// Reads a document of the type PayloadConfig: [(name, record, is_param, use_pickle, meta)]; meta is
// None or (dtype code, sizes, strides, storage offset, requires_grad, device type, device index or
// None). SerializeError for symbolic sizes.
Ref read_payload_config(const schema::Document& document);

}  // namespace fxpress::serde
