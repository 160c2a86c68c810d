// A hash of what a program computes, built bottom-up: the hash of a node is made of its operator,
// its arguments and the hashes of the nodes that it takes values from. Names, the order of
// independent nodes and metadata do not enter.
//
// Order enters where it matters. Values that may share storage are in one set; after a write to the
// set, whoever reads a value of it has the write in its hash. Random operators, effects, and calls
// that change a mode for all that follow are each a chain.
#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "core/text_hash.h"
#include "schema/document.h"
#include "schema/hasher.h"

namespace fxpress::schema {

// The properties of an operator that a hash depends on.
struct OperatorTraits {
  std::vector<std::string> aliased;  // arguments whose storage the results may share
  std::vector<std::string> written;  // arguments that it writes
  bool random = false;               // draws random numbers
  bool effectful = false;            // does something else than to return values
  bool changes_mode = false;         // for all nodes behind it
};

struct HashContext {
  core::TextMap<OperatorTraits> traits;  // by target, of all in the program
  core::TextMap<Digest> values;          // of constants and state, by name
};

struct GraphHash {
  Digest program;             // of all
  std::vector<Digest> nodes;  // of the nodes of the program's own graph, in its order
};

// CanonicalError where a name is not defined, or defined twice.
GraphHash hash_program(const Document& program, const HashContext& context);

}  // namespace fxpress::schema
