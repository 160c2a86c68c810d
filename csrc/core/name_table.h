// Creates names of nodes by the rules of torch.fx.graph._Namespace, on interned strings.
//
// One table serves many graphs, one at a time. begin_graph() forgets the names in use, but keeps
// the parsed candidates, so each candidate is parsed only once.
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "core/flat_map.h"
#include "core/ids.h"
#include "core/string_pool.h"

namespace fxpress::core {

class NameTable {
 public:
  explicit NameTable(StringPool& pool) : pool_(pool) {}

  // Declares that `name` is a keyword or builtin. create() then adds a number to the name.
  void forbid(StringId name);

  // Starts an empty namespace.
  void begin_graph();

  // Creates a name from `candidate`. Each run of characters outside of [0-9a-zA-Z_] becomes one
  // underscore. While the name is in use, appends a number, or increases the number at its end.
  // exempt: allow a name declared by forbid(), because the object to name is this builtin.
  StringId create(StringId candidate, bool exempt = false);

  // Returns `candidate` with illegal characters replaced by underscores.
  StringId legal(StringId candidate) { return parse(candidate).candidate; }

  // Sets the result of parse(raw). The caller parses non-ASCII text by Python's regular
  // expressions, which match more digits than parse(). number: a result of number(), or kNoNumber.
  void define(StringId raw, StringId candidate, StringId base, int64_t number);

  // Returns the base names, such as "add" of "add_1", whose last number has changed since
  // forget_changes() or begin_graph(), in the order of their first change. count(): this number.
  std::span<const StringId> changed_bases() const { return changed_; }
  int64_t count(StringId base) const { return counts_[base.value()]; }
  void forget_changes();

  // Returns whether create() has returned `name` since begin_graph().
  bool is_used(StringId name) const;

  // Encodes decimal digits; digits() decodes them. Up to 18 digits are encoded as their value. More
  // digits, which torch also allows, are encoded as a negative number with the id of their text.
  int64_t number(std::string_view digits);
  std::string digits(int64_t number) const;

  static constexpr int64_t kNoNumber = -1;

 private:
  struct Parsed {
    StringId candidate;          // the legal name; invalid if not parsed yet
    StringId base;               // `candidate` without "_<number>"
    int64_t number = kNoNumber;  // the number at the end, encoded by number()
  };

  Parsed parse(StringId raw);
  int64_t successor(int64_t number);
  StringId numbered(StringId base, int64_t number);
  void reserve_ids();

  StringPool& pool_;                // owns the texts of the ids
  std::vector<Parsed> parsed_;      // index: string
  std::vector<uint8_t> forbidden_;  // index: string; whether forbid() declared it
  std::vector<uint32_t> used_;      // index: string; value of epoch_ when create() returned it
  std::vector<uint32_t> counted_;   // index: base string; value of epoch_ when counts_ was set
  std::vector<uint32_t> changes_;   // index: base string; value of round_ when added to changed_
  std::vector<int64_t> counts_;     // index: base string; its last number in this graph
  std::vector<StringId> changed_;   // base strings whose counts changed in this round, in order
  FlatMap numbered_;                // from (base string, number) to "<base>_<number>"
  uint32_t epoch_ = 1;              // incremented by begin_graph()
  uint32_t round_ = 1;              // incremented by forget_changes()
};

}  // namespace fxpress::core
