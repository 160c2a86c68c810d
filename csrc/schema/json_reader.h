// Reads JSON text into a document, checked against the schema.
#pragma once

#include <string_view>

#include "core/budget.h"
#include "schema/document.h"
#include "schema/json_lexer.h"

namespace fxpress::schema {

// Whether brackets of a JSON text are deeper than that within each other.
bool is_nested_deeper(std::string_view text, size_t depth);

// Reads a value of the given type. As torch does, it ignores keys that the schema does not have and
// takes defaults for keys that are missing; integers are taken for floats, and floats that are not
// finite are strings. Unlike torch it refuses values of a wrong type, keys that come twice, unions
// without exactly one field, text that is not UTF-8 and anything behind the value. What the values
// take is charged to `budget`, if there is one, which also says how deep they may be.
Document read_json(std::string_view text, const Schema& schema, uint16_t type,
                   core::Budget* budget = nullptr);

}  // namespace fxpress::schema
