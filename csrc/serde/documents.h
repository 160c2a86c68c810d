// Defines Python's interface to documents: schema, reading, writing, gate, canonical forms, hashes.
#pragma once

#include <memory>
#include <string>
#include <string_view>

#include "core/budget.h"
#include "py/object.h"
#include "schema/document.h"
#include "schema/schema.h"
#include "serde/objects.h"

namespace fxpress::serde {

using schema::Document;
using schema::Schema;

// Creates a schema from its types: [(name, is_union, [(field, shape, default as JSON or None)])].
// ImportError if the constructor of Schema throws SchemaError.
std::unique_ptr<Schema> make_schema(const pybind11::list& types);

pybind11::list type_names(const Schema& schema);

// Returns [(type, field, name of its gate rule or None, whether native code reads the field)].
pybind11::list rules_of(const Schema& schema);

// Checks each text by the gate rule of its field (schema/gate.h). Raises SerializeError, with the
// field and the text, if a text breaks its rule. Does not check a document twice.
void pass_gate(Document& document);

// Whether a str passes the gate rule with this name; KeyError for an unknown rule.
bool passes_gate(std::string_view rule, PyObject* text);

// Returns the first item of `texts` that is not a str or breaks a gate rule; None if there is none.
Ref first_refused(std::string_view rule, PyObject* texts);

// Returns {name of a gate rule: error message for a text that breaks it}.
Ref gate_rules();

// Reads JSON text as a value of the named type, without the GIL. Raises SerializeError with the
// path of a wrong value. Charges memory to `budget` unless `budget` is null.
Document read_document(const Schema& schema, PyObject* bytes, const std::string& type,
                       core::Budget* budget);

// Converts the field at a path ("graph_module.metadata") to objects of the schema's classes; an
// empty path means the entire document. all_members: see SchemaClasses::make().
Ref read_field(const Document& document, const SchemaClasses& classes, const std::string& path,
               bool all_members);

// Converts objects of the schema's classes into a document.
Document to_document(const Schema& schema, const SchemaClasses& classes, PyObject* object);

// Returns the canonical form of `object`: an ExportedProgram or, if `renamed` is not null, a Graph.
// Fills the dict `renamed` with {old name: new name}. constants: names of constants. AssertionError
// if no form exists; KeyError if the signature has a name that the graph lacks.
Ref canonical_form(const Schema& schema, const SchemaClasses& classes, PyObject* object,
                   PyObject* constants, PyObject* renamed);

// Returns the entries of a PayloadConfig: [(name, record, is_param, use_pickle, meta)]. meta is
// None or (dtype code, sizes, strides, storage offset, requires_grad, device type, device index or
// None). SerializeError for symbolic sizes.
Ref read_payload_config(const Document& document);

// Returns (digest of the program, concatenated digests of its nodes), 32 bytes each. traits:
// {target: (aliased, written, random, effectful, changes_mode)}; values: {name: digest}. Releases
// the GIL. AssertionError for a program without a canonical form.
pybind11::tuple hash_document(const Document& document, const pybind11::dict& traits,
                              const pybind11::dict& values);

}  // namespace fxpress::serde
