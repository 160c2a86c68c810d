// Kinds of the specs of a signature.
#pragma once

#include <array>

#include "py/object.h"

namespace fxpress::serde {

enum class InputKind : uint8_t {
#define FXPRESS_KIND(kind, name) kind,
#include "serde/input_kinds.def"
#undef FXPRESS_KIND
};

enum class OutputKind : uint8_t {
#define FXPRESS_KIND(kind, name) kind,
#include "serde/output_kinds.def"
#undef FXPRESS_KIND
};

// torch's names of the kinds, by kind.
inline constexpr std::array kInputKindNames = {
#define FXPRESS_KIND(kind, name) #name,
#include "serde/input_kinds.def"
#undef FXPRESS_KIND
};
inline constexpr std::array kOutputKindNames = {
#define FXPRESS_KIND(kind, name) #name,
#include "serde/output_kinds.def"
#undef FXPRESS_KIND
};

// AssertionError for a kind that is not known.
InputKind input_kind(PyObject* spec);
OutputKind output_kind(PyObject* spec);

}  // namespace fxpress::serde
