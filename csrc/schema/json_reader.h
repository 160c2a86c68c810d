// Reads JSON text into a document, checked against the schema.
#pragma once

#include <string_view>

#include "core/budget.h"
#include "schema/document.h"
#include "schema/json_lexer.h"

namespace fxpress::schema {

// Whether brackets of a JSON text are nested deeper than `depth`, or deeper than the stack allows.
bool is_nested_deeper(std::string_view text, size_t depth);

// Reads a value of a schema type. Like torch, it ignores unknown keys, uses defaults for missing
// keys, and accepts integers and the strings "NaN", "Infinity" and "-Infinity" as floats. Unlike
// torch, it rejects values of a wrong type, duplicate keys, unions without exactly one field, text
// that is not UTF-8, and trailing text. `budget` limits memory and depth, unless it is null.
Document read_json(std::string_view text, const Schema& schema, uint16_t type,
                   core::Budget* budget = nullptr);

}  // namespace fxpress::schema
