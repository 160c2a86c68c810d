// Implements the naming rules of torch.fx.graph._Namespace, on interned strings.
//
// One table serves many graphs, one after the other: begin_graph() forgets the names in use, but
// keeps the parsed candidates, so that each name is parsed and formatted only once.
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

  // Marks `name` as a keyword or a builtin: create() always adds a number to it.
  void forbid(StringId name);

  // Starts an empty namespace.
  void begin_graph();

  // Creates a name from `candidate`: each run of characters outside of [0-9a-zA-Z_] becomes one
  // underscore, and a number is added or raised until the name is free. `exempt`: allows a
  // forbidden candidate, because the object to name is that builtin.
  StringId create(StringId candidate, bool exempt = false);

  // Returns `candidate` after the replacement of illegal characters.
  StringId legal(StringId candidate) { return parse(candidate).candidate; }

  // Sets the result of parsing the candidate `raw`. Called for text outside of ASCII, in which
  // Python's regular expressions recognize further digits. `number` is a result of number(), or
  // kNoNumber without a suffix.
  void define(StringId raw, StringId candidate, StringId base, int64_t number);

  // The base names whose counts have changed since forget_changes() or begin_graph(), in the order
  // of first change.
  std::span<const StringId> changed_bases() const { return changed_; }
  int64_t count(StringId base) const { return counts_[base.value()]; }
  void forget_changes();

  // Whether create() has returned this name in the current namespace.
  bool is_used(StringId name) const;

  // Encodes decimal digits as a number; digits() is the inverse. A number of more than 18 digits,
  // which torch counts like any number, is encoded as a negative value: the id of its digits.
  int64_t number(std::string_view digits);
  std::string digits(int64_t number) const;

  static constexpr int64_t kNoNumber = -1;

 private:
  struct Parsed {
    StringId candidate;          // the candidate as a legal name; invalid: not parsed yet
    StringId base;               // candidate without "_<number>"
    int64_t number = kNoNumber;  // see number()
  };

  Parsed parse(StringId raw);
  int64_t successor(int64_t number);
  StringId numbered(StringId base, int64_t number);
  void reserve_ids();

  StringPool& pool_;                // owns the text of every id
  std::vector<Parsed> parsed_;      // by string
  std::vector<uint8_t> forbidden_;  // by string
  std::vector<uint32_t> used_;      // by string: the epoch in which create() returned it
  std::vector<uint32_t> counted_;   // by string: the epoch in which counts_ is valid
  std::vector<uint32_t> changes_;   // by string: the round in which it was added to changed_
  std::vector<int64_t> counts_;     // by base string: the number that was used last
  std::vector<StringId> changed_;   // base strings of this round, in order of first use
  FlatMap numbered_;                // (base, number) -> string
  uint32_t epoch_ = 1;              // the current namespace
  uint32_t round_ = 1;              // raised by forget_changes()
};

}  // namespace fxpress::core
