// The canonical form of a program: nodes in an order that depends on what they compute alone, names
// counted from 0, nothing of what only tells where the program came from.
#pragma once

#include <stdexcept>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "core/text_hash.h"
#include "schema/document.h"

namespace fxpress::schema {

// A program without a canonical form: a name that nothing defines or two values define, a cycle, a
// signature of another length than the graph's.
class CanonicalError : public std::runtime_error {
 public:
  using std::runtime_error::runtime_error;
};

// The signature has a name that no value of the graph has.
class UnknownName : public CanonicalError {
 public:
  using CanonicalError::CanonicalError;
};

// The canonical form of an ExportedProgram. `constants` are names that no node defines, and that
// keep their place and name.
Document canonicalize(const Document& program, const core::TextViewSet& constants);

// Returns the canonical form of a Graph whose inputs and outputs are in order already. The entries
// that are added to `names` have no order.
using NewNames = std::vector<std::pair<std::string, std::string>>;  // of values: old and new
Document canonicalize_graph(const Document& graph, const core::TextViewSet& constants,
                            NewNames& names);

}  // namespace fxpress::schema
