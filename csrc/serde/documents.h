// Documents: the schema that they have, reading and writing them, the gate, canonical forms,
// hashes.
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

// types: [(name, is_union, [(field, shape, default as JSON or None)])]. ImportError for types that
// differ from the tables in what native code has to know.
std::unique_ptr<Schema> make_schema(const pybind11::list& types);

// The names of the types, in their order.
pybind11::list type_names(const Schema& schema);

// [(type, field, the name of its rule or None, whether native code gives the field a meaning)]
pybind11::list rules_of(const Schema& schema);

// Raises SerializeError that names the field and the value, where a text of the document breaks the
// rule of its field. A document that has passed is not checked again.
void pass_gate(Document& document);

// Whether a str passes the rule with this name; KeyError when there is none.
bool passes_gate(std::string_view rule, PyObject* text);

// The first item of an iterable that is no str, or breaks the rule; None when there is none.
Ref first_refused(std::string_view rule, PyObject* texts);

// Returns a dict from the name of every rule to the words of its error.
Ref gate_rules();

// Reads a value of the named type. SerializeError names the place where the text is wrong. The GIL
// is released meanwhile. The load is charged to `budget` unless that is null.
Document read_document(const Schema& schema, PyObject* bytes, const std::string& type,
                       core::Budget* budget);

// Reads the field of a document at a path ("graph_module.metadata"), as objects of the schema's
// classes. An empty path reads the whole document.
Ref read_field(const Document& document, const SchemaClasses& classes, const std::string& path,
               bool all_members);

// Makes a document of objects of the schema's classes.
Document to_document(const Schema& schema, const SchemaClasses& classes, PyObject* object);

// The canonical form of a program, as new objects; `constants` is a set of names. AssertionError
// where it has none; KeyError for a name of the signature that the graph has not. With `renamed`, a
// dict: that of a graph; old and new names of its values are put there.
Ref canonical_form(const Schema& schema, const SchemaClasses& classes, PyObject* object,
                   PyObject* constants, PyObject* renamed);

// Reads a document of the type PayloadConfig: [(name, record, is_param, use_pickle, meta)]; meta is
// None or (dtype code, sizes, strides, storage offset, requires_grad, device type, device index or
// None). SerializeError for symbolic sizes.
Ref read_payload_config(const Document& document);

// (digest of the program, digests of its nodes, one behind the other), of 32 bytes each.
// traits: {target: (aliased, written, random, effectful, changes_mode)}; values: {name: digest}.
// AssertionError for a program without a canonical form. The GIL is released meanwhile.
pybind11::tuple hash_document(const Document& document, const pybind11::dict& traits,
                              const pybind11::dict& values);

}  // namespace fxpress::serde
