// The kinds of arguments as an enum of their own: `Field` has the fields of all types, so that a
// switch over it cannot be complete. A switch over this one has no `default`, and the compiler
// names the kinds that it misses (-Wswitch).
#pragma once

#include "schema/document.h"

namespace fxpress::serde {

// The preprocessor keeps the fields of the union Argument: with another type's name the second
// parameter of FXPRESS_SECOND is FXPRESS_DROP.
#define FXPRESS_TYPE_IS_Argument ~, FXPRESS_KEEP
#define FXPRESS_KEEP(name) name = static_cast<uint16_t>(schema::Field::Argument_##name),
#define FXPRESS_DROP(name)
#define FXPRESS_SECOND(first, second, ...) second
#define FXPRESS_SELECT(...) FXPRESS_SECOND(__VA_ARGS__)
#define FXPRESS_TYPE(name)
#define FXPRESS_FIELD(type, name, rule) \
  FXPRESS_SELECT(FXPRESS_TYPE_IS_##type, FXPRESS_DROP, ~)(name)

enum class ArgumentKind : uint16_t {
#include "schema/schema.def"
};

#undef FXPRESS_FIELD
#undef FXPRESS_TYPE
#undef FXPRESS_SELECT
#undef FXPRESS_SECOND
#undef FXPRESS_DROP
#undef FXPRESS_KEEP
#undef FXPRESS_TYPE_IS_Argument

// The kind of a value of the union Argument. It is none of the enum for a kind that only a later
// torch knows.
inline ArgumentKind argument_kind(const schema::Document& document, const schema::Value& argument) {
  return static_cast<ArgumentKind>(document.tag(argument));
}

}  // namespace fxpress::serde
