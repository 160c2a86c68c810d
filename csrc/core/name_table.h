// The naming rules of torch.fx.graph._Namespace, on interned strings.
//
// One table serves many graphs, one after the other: begin_graph() forgets the names in use but
// keeps what is known about each candidate, so that a name is parsed and formatted only once.
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

  // `name` is a keyword or a builtin: it always gets a number.
  void forbid(StringId name);

  // Starts an empty namespace.
  void begin_graph();

  // A fresh name made from `candidate`: characters outside of [0-9a-zA-Z_] become one underscore,
  // a number is added or raised until the name is free. `exempt`: the candidate may be used though
  // forbidden (the builtin itself is being named).
  StringId create(StringId candidate, bool exempt = false);

  // Returns `candidate` after the replacement of illegal characters.
  StringId legal(StringId candidate) { return parse(candidate).candidate; }

  // States how `raw` is parsed, for text outside of ASCII, whose digits Python's regular
  // expressions know and we don't. `number` is what number() says, or kNoNumber without a suffix.
  void define(StringId raw, StringId candidate, StringId base, int64_t number);

  // The base names whose counts have changed since forget_changes() or begin_graph(), in order of
  // first appearance, and their counts.
  std::span<const StringId> changed_bases() const { return changed_; }
  int64_t count(StringId base) const { return counts_[base.value()]; }
  void forget_changes();

  // Whether the current namespace has handed out this name.
  bool is_used(StringId name) const;

  // Numbers are held as int64_t up to 18 digits; longer ones, which torch counts like any other,
  // are negative and stand for text in the pool. Decimal digits to number and back.
  int64_t number(std::string_view digits);
  std::string digits(int64_t number) const;

  static constexpr int64_t kNoNumber = -1;

 private:
  struct Parsed {
    StringId candidate;          // legal text; invalid: not parsed yet
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
  std::vector<uint32_t> used_;      // by string: the epoch in which it was handed out
  std::vector<uint32_t> counted_;   // by string: the epoch in which counts_ is valid
  std::vector<uint32_t> changes_;   // by string: the round in which it went into changed_
  std::vector<int64_t> counts_;     // by base string: the number handed out last
  std::vector<StringId> changed_;   // base strings of this round, in order of first use
  FlatMap numbered_;                // (base, number) -> string
  uint32_t epoch_ = 1;              // the current namespace
  uint32_t round_ = 1;              // of changes
};

}  // namespace fxpress::core
