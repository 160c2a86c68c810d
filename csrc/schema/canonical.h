// Computes the canonical form of a program: nodes are ordered by what they compute, values are
// named _0, _1 and so on, and metadata is left out.
#pragma once

#include <stdexcept>
#include <string>
#include <utility>
#include <vector>

#include "core/text_hash.h"
#include "schema/document.h"

namespace fxpress::schema {

// Thrown if a program has no canonical form: a name is undefined or defined twice, the graph has a
// cycle, or the signature and the graph have different numbers of inputs or outputs.
class CanonicalError : public std::runtime_error {
 public:
  using std::runtime_error::runtime_error;
};

// Thrown if the signature contains a name that no value of the graph has.
class UnknownName : public CanonicalError {
 public:
  using CanonicalError::CanonicalError;
};

// Returns the canonical form of an ExportedProgram. constants: the names that arguments may use
// although no node or input defines them. These names are not changed.
Document canonicalize(const Document& program, const core::TextViewSet& constants);

// Returns the canonical form of a Graph whose inputs and outputs are sorted already. Adds the old
// and the new name of each value to `names`, in no particular order.
using NewNames = std::vector<std::pair<std::string, std::string>>;
Document canonicalize_graph(const Document& graph, const core::TextViewSet& constants,
                            NewNames& names);

}  // namespace fxpress::schema
