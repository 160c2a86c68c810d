// Objects of Python that encoding and decoding work with; as fx/symbols.h.
#pragma once

#include "core/tensor_access.h"
#include "py/object.h"

namespace fxpress::serde {

struct Symbols {
#define FXPRESS_SYMBOL(name) PyObject* name = nullptr;
#include "serde/symbols.def"
#undef FXPRESS_SYMBOL
};

struct Names {
#define FXPRESS_NAME(name) PyObject* name = nullptr;
#define FXPRESS_NAME_AS(role, name) PyObject* role = nullptr;
#include "serde/attribute_names.def"
#undef FXPRESS_NAME_AS
#undef FXPRESS_NAME
};

extern Symbols symbols;  // owned references, held until the process ends
extern Names names;      // likewise

// Reads a tensor without Python; null where the part with libtorch is not to be had.
extern core::ReadTensorFacts read_tensor_facts;

// Fills the tables; called once by `_native_setup.serde`.
void initialize_symbols(PyObject* objects);

}  // namespace fxpress::serde
