// Documents from bytes and objects, objects from them, and their canonical form.
#pragma once

#include <string>

#include "core/budget.h"
#include "py/object.h"
#include "schema/document.h"
#include "schema/schema.h"
#include "serde/objects.h"

namespace fxpress::serde {

using schema::Document;
using schema::Schema;

// Reads a value of the named type. SerializeError names the place where the text is wrong. The GIL
// is released meanwhile. The load is charged to `budget` unless that is null.
Document read_document(const Schema& schema, PyObject* bytes, const std::string& type,
                       core::Budget* budget);

// Reads the field of a document at a path ("graph_module.metadata"), as objects of the schema's
// classes. An empty path reads the whole document.
Ref read_field(const Document& document, const SchemaClasses& classes, const std::string& path);

// Makes a document of objects of the schema's classes.
Document to_document(const Schema& schema, const SchemaClasses& classes, PyObject* object);

// The canonical form of a program, as new objects; `constants` is a set of names. AssertionError
// where it has none; KeyError for a name of the signature that the graph has not. With `renamed`, a
// dict: that of a graph; old and new names of its values are put there.
Ref canonical_form(const Schema& schema, const SchemaClasses& classes, PyObject* object,
                   PyObject* constants, PyObject* renamed);

}  // namespace fxpress::serde
