// A schema for tests: the types with code, all of texts, and the types that a test adds.
#pragma once

#include <string>
#include <vector>

#include "schema/schema.h"

namespace fxpress::schema {

inline std::vector<Schema::NewType> types_with_code() {
  std::vector<Schema::NewType> types;
#define FXPRESS_TYPE(name) types.push_back({#name, false, {}});
#define FXPRESS_FIELD(type, name, rule) \
  types.back().fields.push_back({#name, Rule::rule == Rule::kNone ? "int" : "str", true, ""});
#include "schema/schema.def"
#undef FXPRESS_FIELD
#undef FXPRESS_TYPE
  return types;
}

// With a record Point {x: int, y: float = 0.5, label: optional str = null, tags: list str = [],
// more: map Point = {}, kind: optional Shape = null} and a union Shape {circle: float, name: str}.
inline Schema schema_for_tests() {
  std::vector<Schema::NewType> types = types_with_code();
  types.push_back({"Shape", true, {{"circle", "float", false, ""}, {"name", "str", false, ""}}});
  types.push_back({"Point",
                   false,
                   {{"x", "int", true, ""},
                    {"y", "float", false, "0.5"},
                    {"label", "optional str", false, "null"},
                    {"tags", "list str", false, "[]"},
                    {"more", "map Point", false, "{}"},
                    {"kind", "optional Shape", false, "null"},
                    {"on", "bool", false, "false"}}});
  return Schema(types);
}

}  // namespace fxpress::schema
