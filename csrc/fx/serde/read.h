// JSON bytes of Python as documents.
#pragma once

#include <string>

#include "fx/py.h"
#include "serde/document.h"

namespace fxpress::fx::serde {

// Reads a value of the named type. SerializeError names the place where the text is wrong. The GIL
// is released meanwhile.
::fxpress::serde::Document read_document(const ::fxpress::serde::Schema& schema, PyObject* bytes,
                                         const std::string& type);

}  // namespace fxpress::fx::serde
