// torch's serialization schema, as make_schema.py has written it.
#pragma once

#include <vector>

#include "schema/schema.h"

namespace fxpress::schema {

inline const Schema& torch_schema() {
  static const std::vector<Schema::NewType> types = {
#include "schema.inc"
  };
  static const Schema made(types);
  return made;
}

}  // namespace fxpress::schema
