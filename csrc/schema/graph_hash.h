// Hashes what a program computes, bottom-up: the hash of a node covers its operator, its arguments
// and the hashes of the nodes that define them. Names, the order of independent nodes and metadata
// do not affect it.
//
// Order affects the hash where it affects the result. Values that may share storage form a set.
// After a write to a value of a set, the hash of each node that reads a value of the set covers the
// write. The hash of a random operator covers the previous random operator, and the hash of an
// operator with a side effect covers the previous operator with one. The hash of each node covers
// the last call that changed a mode.
#pragma once

#include <string>
#include <vector>

#include "core/text_hash.h"
#include "schema/document.h"
#include "schema/hasher.h"

namespace fxpress::schema {

// The properties of an operator that a hash depends on.
struct OperatorTraits {
  std::vector<std::string> aliased;  // arguments that the results may alias
  std::vector<std::string> written;  // arguments that the operator writes
  bool random = false;               // draws random numbers
  bool effectful = false;            // has a side effect
  bool changes_mode = false;         // changes a mode for all later nodes
};

struct HashContext {
  core::TextMap<OperatorTraits> traits;  // properties of the program's operators, by target
  core::TextMap<Digest> values;          // digests of constants, parameters and buffers, by name
};

struct GraphHash {
  Digest program;             // digest of the entire program
  std::vector<Digest> nodes;  // digests of the root graph's nodes, in graph order
};

// Throws CanonicalError for a name that is not defined or defined twice.
GraphHash hash_program(const Document& program, const HashContext& context);

}  // namespace fxpress::schema
