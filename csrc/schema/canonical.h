// Computes the canonical form of a program: the order of nodes depends only on what they compute,
// names count from 0, and metadata about the program's origin is left out.
#pragma once

#include <stdexcept>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "core/text_hash.h"
#include "schema/document.h"

namespace fxpress::schema {

// Thrown for a program without a canonical form: a name is not defined or defined twice, the graph
// has a cycle, or the signature and the graph differ in length.
class CanonicalError : public std::runtime_error {
 public:
  using std::runtime_error::runtime_error;
};

// Thrown if the signature contains a name that no value of the graph has.
class UnknownName : public CanonicalError {
 public:
  using CanonicalError::CanonicalError;
};

// Returns the canonical form of an ExportedProgram. constants: names that arguments may use, but no
// node or input defines; these names are kept.
Document canonicalize(const Document& program, const core::TextViewSet& constants);

// Returns the canonical form of a Graph whose inputs and outputs are sorted already. Adds the
// renamed values to `names`, in no particular order.
using NewNames = std::vector<std::pair<std::string, std::string>>;  // of values: old and new
Document canonicalize_graph(const Document& graph, const core::TextViewSet& constants,
                            NewNames& names);

}  // namespace fxpress::schema
