// Exported programs, and parts of them, from documents.
#pragma once

#include "fx/serde/check.h"
#include "fx/serde/decoder.h"

namespace fxpress::fx::serde {

// What a document has at a path of fields ("graph_module.metadata"), as objects of the schema's
// classes. All of it where the path is empty.
Ref read_field(const Document& document, const SchemaClasses& classes, const std::string& path);

// Objects of the schema's classes as a document, with or without the metadata of nodes.
Document to_document(const ::fxpress::serde::Schema& schema, const SchemaClasses& classes,
                     PyObject* object, bool metadata);

// The canonical form of a program; `constants` is a set of names. AssertionError where it has
// none; KeyError for a name of the signature that the graph has not.
Document canonical_form(const Document& document, PyObject* constants);

// The objects for a canonical program: as in torch its inputs and outputs are tuples.
Ref canonical_objects(const Document& document, const SchemaClasses& classes);

// The parts of a program; see Decoder::program().
Ref decode_program(const Document& document, const DecodeContext& context);

// A fake tensor with the metadata that a document is.
Ref decode_tensor(const Document& document, const DecodeContext& context);

// True when torch's verifier has nothing to say against a program, and no two nodes take the same
// result of another. False: it may have. `module` is the first of the check's graph modules.
bool is_surely_valid(PyObject* module, const ProgramCheck& check);

}  // namespace fxpress::fx::serde
