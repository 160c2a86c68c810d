// Python's interface to documents: schema, reading, writing, the gate, canonical forms, hashes.
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

// types: [(name, is_union, [(field, shape, default as JSON or None)])]. ImportError if the types
// differ from the tables of the native code.
std::unique_ptr<Schema> make_schema(const pybind11::list& types);

// The names of the types in schema order.
pybind11::list type_names(const Schema& schema);

// [(type, field, name of its rule or None, whether the native code interprets the field)]
pybind11::list rules_of(const Schema& schema);

// Raises SerializeError with the field and the value if a text of the document breaks its field's
// rule. A document that has passed is not checked again.
void pass_gate(Document& document);

// Whether a str passes the rule with this name; KeyError for an unknown rule.
bool passes_gate(std::string_view rule, PyObject* text);

// Returns the first item of an iterable that is not a str or breaks the rule, or None.
Ref first_refused(std::string_view rule, PyObject* texts);

// Returns a dict of rule names to the messages of their errors.
Ref gate_rules();

// Reads a value of the named type, without the GIL. SerializeError states the path of an error in
// the text. Costs are charged to `budget` unless it is null.
Document read_document(const Schema& schema, PyObject* bytes, const std::string& type,
                       core::Budget* budget);

// Reads the field of a document at a path ("graph_module.metadata") as objects of the schema's
// classes. An empty path reads the entire document.
Ref read_field(const Document& document, const SchemaClasses& classes, const std::string& path,
               bool all_members);

// Converts objects of the schema's classes into a document.
Document to_document(const Schema& schema, const SchemaClasses& classes, PyObject* object);

// Returns the canonical form of a program as new objects; `constants` is a set of names.
// AssertionError if it does not have one; KeyError if the signature has a name that the graph
// lacks. With a dict `renamed`, returns the form of a graph and adds {old name: new name}.
Ref canonical_form(const Schema& schema, const SchemaClasses& classes, PyObject* object,
                   PyObject* constants, PyObject* renamed);

// Reads a document of type PayloadConfig: [(name, record, is_param, use_pickle, meta)]. meta is
// None or (dtype code, sizes, strides, storage offset, requires_grad, device type, device index or
// None). SerializeError for symbolic sizes.
Ref read_payload_config(const Document& document);

// Returns (digest of the program, concatenated digests of its nodes), 32 bytes each. traits:
// {target: (aliased, written, random, effectful, changes_mode)}; values: {name: digest}. Releases
// the GIL. AssertionError for a program without a canonical form.
pybind11::tuple hash_document(const Document& document, const pybind11::dict& traits,
                              const pybind11::dict& values);

}  // namespace fxpress::serde
