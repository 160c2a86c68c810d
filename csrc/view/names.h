// The texts that all graphs for Model Explorer have in common.
#pragma once

#include "py/object.h"

namespace fxpress::view {

struct Names {
#define FXPRESS_NAME(role, text) PyObject* role = check(PyUnicode_InternFromString(text));
#include "view/names.def"
#undef FXPRESS_NAME
};

// Owned, until the process ends.
inline const Names& names() {
  static const Names made;
  return made;
}

}  // namespace fxpress::view
