// Holds Python objects that encoding and decoding use; compare fx/symbols.h.
#pragma once

#include "core/tensor_access.h"
#include "py/object.h"
#include "schema/signature.h"

namespace fxpress::serde {

using schema::SpecArgument;
using schema::SpecInfo;
using schema::SpecTarget;

struct Symbols {
#define FXPRESS_SYMBOL(name) PyObject* name = nullptr;
#include "serde/symbols.def"
#undef FXPRESS_SYMBOL
};

extern Symbols symbols;  // owned references, held until the process ends

// Reads the metadata of a tensor in C++; null if the extension that uses libtorch is missing.
extern core::ReadTensorFacts read_tensor_facts;

// Fills `symbols`; called once by `_files/serde/native_table.py`.
void initialize_symbols(PyObject* objects);

// Whether `symbols` is filled. Without torch, it is empty, but documents can be read.
bool has_torch();

// The type of errors about files: SerializeError, or ValueError without torch. Borrowed.
PyObject* damage_error();

// Returns the row of kSpecs for an InputSpec or OutputSpec object of torch. AssertionError if the
// object's `kind` does not belong to `type`, which is Type::InputSpec or Type::OutputSpec.
const SpecInfo& spec_info(PyObject* spec, schema::Type type);

// torch's class for arguments of a type, borrowed; null for SpecArgument::kAny.
PyObject* python_type(SpecArgument type);

}  // namespace fxpress::serde
