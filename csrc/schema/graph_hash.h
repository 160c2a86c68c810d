// A hash of what a program computes, built bottom-up: the hash of a node covers its operator, its
// arguments and the hashes of the nodes that define them. Names, the order of independent nodes and
// metadata do not affect it.
//
// Order affects the hash where it matters. Values that may share storage are in one set; after a
// write to the set, the hash of every node that reads one of its values covers the write. Random
// operators, side effects, and calls that change a mode form one chain each.
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
  std::vector<std::string> aliased;  // arguments that the results may alias
  std::vector<std::string> written;  // arguments that it writes
  bool random = false;               // draws random numbers
  bool effectful = false;            // has a side effect
  bool changes_mode = false;         // for all later nodes
};

struct HashContext {
  core::TextMap<OperatorTraits> traits;  // by target, for all targets in the program
  core::TextMap<Digest> values;          // of constants and state, by name
};

struct GraphHash {
  Digest program;             // of the entire program
  std::vector<Digest> nodes;  // of the nodes of the program's own graph, in its order
};

// Throws CanonicalError for a name that is not defined or defined twice.
GraphHash hash_program(const Document& program, const HashContext& context);

}  // namespace fxpress::schema
