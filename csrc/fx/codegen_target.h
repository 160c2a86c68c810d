// Decides how generated source refers to a function.
#pragma once

#include <string>

#include "py/object.h"

namespace fxpress::fx {

enum class TargetKind : uint8_t {
#define FXPRESS_KIND(kind, name) kind,
#include "fx/target_kinds.def"
#undef FXPRESS_KIND
};

struct TargetText {
  TargetKind kind;   // how to read the text
  std::string text;  // see TargetKind
};

// Asks torch's rules once per function: operators and built-in functions are remembered for the
// rest of the process, others (whose names may change) are asked about each time.
const TargetText& describe_target(PyObject* target);

}  // namespace fxpress::fx
