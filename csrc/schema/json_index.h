// Where the values of a JSON text are: it is read once, and its values stay in the text.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>

#include "core/budget.h"
#include "core/growing_array.h"
#include "schema/json_lexer.h"

namespace fxpress::schema {

// Values are known by their numbers, in the order of the text: the whole is number 0. The text may
// be any that Python's own reader takes in UTF-8: also NaN and Infinity, and keys that come twice,
// of which the last one counts.
class JsonIndex {
 public:
  static constexpr uint32_t kNone = 0xffffffffu;

  // Reads a text, which outlives this object. Throws JsonError, or LimitReached of the budget.
  JsonIndex(std::string_view text, core::Budget& budget);

  bool is_object(uint32_t value) const { return first(value) == '{'; }
  bool is_list(uint32_t value) const { return first(value) == '['; }
  bool is_text(uint32_t value) const { return first(value) == '"'; }
  // A value as it stands in the text.
  std::string_view raw(uint32_t value) const {
    return text_.substr(entries_[value].start, entries_[value].size);
  }
  // What a text says, in UTF-8, lone surrogates as if they were characters. Valid as long as the
  // whole text, or as `unescaped`.
  std::string_view text(uint32_t value, std::string& unescaped) const {
    return unquoted(raw(value), unescaped);
  }
  // How many values there are in a value, at all depths.
  uint32_t size_within(uint32_t value) const { return entries_[value].next - value - 1; }

  // The values in a list or an object, in order: from first_in() on, next() by next(), to end_of().
  uint32_t first_in(uint32_t value) const { return value + 1; }
  uint32_t next(uint32_t value) const { return entries_[value].next; }
  uint32_t end_of(uint32_t value) const { return entries_[value].next; }
  // The only value in a list or an object; kNone when there is none, or there are several.
  uint32_t only_one(uint32_t value) const {
    const uint32_t found = first_in(value);
    return found != end_of(value) && next(found) == end_of(value) ? found : kNone;
  }
  // The key of a value in an object, as text() gives it.
  std::string_view key(uint32_t value, std::string& unescaped) const;
  bool has_key(uint32_t value, std::string_view key) const;
  // The value of an object with this key, or kNone.
  uint32_t find(uint32_t object, std::string_view key) const;

 private:
  friend class IndexReader;

  struct Entry {
    uint32_t start;  // in the text
    uint32_t size;   // bytes
    uint32_t next;   // the number behind this value and those in it
    uint32_t key;    // in the text: behind its quote; 0: it is in no object
  };
  char first(uint32_t value) const { return text_[entries_[value].start]; }

  std::string_view text_;              // the whole
  core::GrowingArray<Entry> entries_;  // by number
};

}  // namespace fxpress::schema
