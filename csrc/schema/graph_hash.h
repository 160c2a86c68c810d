// Hashes what a program computes, bottom-up: the hash of a node covers its operator, its arguments
// and the hashes of the nodes that define them. Names, the order of independent nodes and metadata
// do not affect it.
//
// Order affects the hash where it affects the result. Values that may share storage form a set.
// After a write to a value of a set, the hash of each node that reads a value of the set covers the
// write. The hash of a random operator covers the previous random operator. The hash of an operator
// with a side effect covers the previous such operator. The hash of each node covers the last call
// that changed a mode.
#pragma once

#include <bit>
#include <cmath>
#include <cstdint>
#include <limits>
#include <string>
#include <string_view>
#include <vector>

#include "core/blake2b.h"
#include "core/text_hash.h"
#include "schema/document.h"

namespace fxpress::schema {

using core::Digest;

// Collects the bytes of the values to hash. The bytes of each value show where the value ends, so
// different sequences of values have different bytes.
class Hasher {
 public:
  explicit Hasher(std::string_view kind) {  // kind: the text that is hashed first
    bytes_.reserve(kUsual);
    text(kind);
  }

  void byte(uint8_t value) { bytes_.push_back(value); }
  // Writes `value` in LEB128: seven bits in each byte, lowest bits first.
  void size(uint64_t value) {
    for (; value >= 128; value >>= 7) byte(static_cast<uint8_t>(value | 128));
    byte(static_cast<uint8_t>(value));
  }
  void integer(int64_t value) {  // zigzag: small values of both signs are short
    const auto bits = static_cast<uint64_t>(value);
    size(value < 0 ? ~(bits << 1) : bits << 1);
  }
  void text(std::string_view text) {
    size(text.size());
    bytes_.insert(bytes_.end(), text.begin(), text.end());
  }
  void digest(const Digest& digest) { bytes_.insert(bytes_.end(), digest.begin(), digest.end()); }
  void real(double value) {
    if (std::isnan(value)) value = std::numeric_limits<double>::quiet_NaN();
    const auto bits = std::bit_cast<uint64_t>(value);
    for (int shift = 0; shift < 64; shift += 8) byte(static_cast<uint8_t>(bits >> shift));
  }
  Digest finish() const { return core::blake2b(bytes_); }

 private:
  static constexpr size_t kUsual = 384;  // bytes that most nodes need
  std::vector<uint8_t> bytes_;
};

// Adds `term` to `sum`, as integers of 256 bits. The order of the terms does not affect the sum.
inline void accumulate(Digest& sum, const Digest& term) {
  unsigned carry = 0;
  for (size_t i = 0; i < sum.size(); ++i) {
    carry += unsigned{sum[i]} + unsigned{term[i]};
    sum[i] = static_cast<uint8_t>(carry);
    carry >>= 8;
  }
}

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

// Throws CanonicalError for a name that is undefined or defined twice.
GraphHash hash_program(const Document& program, const HashContext& context);

}  // namespace fxpress::schema
