#include "schema/json_index.h"

#include <span>

namespace fxpress::schema {

namespace {

constexpr size_t kMostBytes = 0xfffffff0u;  // of a text: places and numbers have 32 bits

}  // namespace

class IndexReader final : JsonLexer {
 public:
  IndexReader(std::string_view text, core::Budget& budget, core::GrowingArray<JsonIndex::Entry>& to)
      : JsonLexer(text, &budget), entries_(to) {}

  void read() {
    if (text_.size() > kMostBytes) fail("the text is too long");
    charge(kEntryBytes);
    read_value(0);
    expect_end();
  }

 private:
  static constexpr uint64_t kEntryBytes = 3 * sizeof(JsonIndex::Entry) / 2;  // the array grows

  std::string place() const override { return "the text"; }

  void read_value(size_t key) {
    const size_t number = entries_.size();
    const char kind = peek();
    const size_t start = at_;
    const JsonIndex::Entry entry{static_cast<uint32_t>(start), 0, 0, static_cast<uint32_t>(key)};
    entries_.append(std::span(&entry, 1));
    switch (kind) {
      case '"':
        read_string(unescaped_);
        break;
      case '{':
        each('{', '}', kEntryBytes, [&] {
          if (peek() != '"') fail("expected a key");
          const size_t quote = at_;
          read_string(unescaped_);
          expect(':');
          read_value(quote + 1);
        });
        break;
      case '[':
        each('[', ']', kEntryBytes, [&] { read_value(0); });
        break;
      default:
        read_word();
    }
    entries_[number].size = static_cast<uint32_t>(at_ - start);
    entries_[number].next = static_cast<uint32_t>(entries_.size());
  }

  void read_word() {
    for (const std::string_view word : {"null", "true", "false", "NaN", "Infinity", "-Infinity"}) {
      if (accept_word(word)) return;
    }
    bool whole = false;
    read_number(whole);
  }

  core::GrowingArray<JsonIndex::Entry>& entries_;  // those that were read
  std::string unescaped_;
};

JsonIndex::JsonIndex(std::string_view text, core::Budget& budget) : text_(text) {
  IndexReader(text, budget, entries_).read();
}

std::string_view JsonIndex::key(uint32_t value, std::string& unescaped) const {
  const size_t quote = entries_[value].key - size_t{1};
  size_t end = quote + 1;
  while (text_[end] != '"') end += text_[end] == '\\' ? 2 : 1;
  return unquoted(text_.substr(quote, end + 1 - quote), unescaped);
}

bool JsonIndex::has_key(uint32_t value, std::string_view key) const {
  const size_t start = entries_[value].key;
  size_t at = start;
  for (const char c : key) {  // keys have no quotes: it ends before the text does
    if (text_[at] == '\\') {
      std::string unescaped;
      return this->key(value, unescaped) == key;
    }
    if (text_[at++] != c) return false;
  }
  return text_[at] == '"';
}

uint32_t JsonIndex::find(uint32_t object, std::string_view key) const {
  uint32_t found = kNone;
  for (uint32_t at = first_in(object); at != end_of(object); at = next(at)) {
    if (has_key(at, key)) found = at;
  }
  return found;
}

}  // namespace fxpress::schema
