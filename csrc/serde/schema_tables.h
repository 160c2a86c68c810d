// The tables of the schema for Python.
#pragma once

#include <memory>

#include "py/object.h"
#include "schema/schema.h"

namespace fxpress::serde {

// types: [(name, is_union, [(field, shape, default as JSON or None)])]. ImportError for types that
// differ from the tables in what native code has to know.
std::unique_ptr<schema::Schema> make_schema(const pybind11::list& types);

// The names of the types, in their order.
pybind11::list type_names(const schema::Schema& schema);

// [(type, field, the name of its rule or None, whether native code gives the field a meaning)]
pybind11::list rules_of(const schema::Schema& schema);

}  // namespace fxpress::serde
