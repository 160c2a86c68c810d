// Lists the operators that a program calls.
#pragma once

#include <string_view>
#include <vector>

#include "schema/document.h"

namespace fxpress::schema {

// The targets of all nodes of a program, those of graphs in arguments too, each once.
std::vector<std::string_view> targets_of(const Document& program);

}  // namespace fxpress::schema
