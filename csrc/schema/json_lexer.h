// Tokenizes JSON text: quoted texts, numbers and punctuation.
#pragma once

#include <cstdint>
#include <stdexcept>
#include <string>
#include <string_view>

#include "core/budget.h"

namespace fxpress::schema {

// Thrown for a text that is not JSON or does not match the schema; what() states path and offset.
class JsonError : public std::runtime_error {
 public:
  using std::runtime_error::runtime_error;
};

inline constexpr size_t kMaxDepth = 1000;  // nested values; Python's own reader has the same limit

// Returns a prefix of a text as printable ASCII, for an error message.
std::string shown(std::string_view text);

// The base class of JSON readers. Throws JsonError, or LimitReached if the budget is exceeded.
class JsonLexer {
 protected:
  // budget: limits the memory and the depth of values, if it is not null.
  JsonLexer(std::string_view text, core::Budget* budget)
      : text_(text), budget_(budget), max_depth_(budget == nullptr ? kMaxDepth : budget->depth()) {}
  ~JsonLexer() = default;

  // Returns the path of the current value, for error messages.
  virtual std::string place() const = 0;

  [[noreturn]] void fail(const std::string& what) const;
  // Fails with a message that quotes the text from offset `from` to the next delimiter.
  [[noreturn]] void fail_expected(const char* expected, size_t from) const;

  void skip_space() {
    while (at_ < text_.size() &&
           (text_[at_] == ' ' || text_[at_] == '\n' || text_[at_] == '\t' || text_[at_] == '\r')) {
      ++at_;
    }
  }
  // Returns the next character after white space; 0 at the end.
  char peek() {
    skip_space();
    return at_ < text_.size() ? text_[at_] : '\0';
  }
  bool accept(char expected) {
    if (peek() != expected) return false;
    ++at_;
    return true;
  }
  void expect(char expected);
  bool accept_word(std::string_view word) {
    skip_space();
    if (!text_.substr(at_).starts_with(word)) return false;
    at_ += word.size();
    return true;
  }
  // Fails unless only white space is left.
  void expect_end() {
    skip_space();
    if (at_ != text_.size()) fail("expected the end of the text after the value");
  }

  void enter();
  void leave() { --depth_; }
  void charge(uint64_t bytes) {
    if (budget_ != nullptr) budget_->charge(bytes);
  }

  // Reads a list or object that begins with `open` and ends with `close`. For each item or entry,
  // charges `item_bytes` to the budget and calls read().
  template <class F>
  void read_items(char open, char close, uint64_t item_bytes, F&& read) {
    enter();
    expect(open);
    if (!accept(close)) {
      do {
        charge(item_bytes);
        read();
      } while (accept(','));
      expect(close);
    }
    leave();
  }

  // Reads a quoted text. The result refers to the input, or to `unescaped` if the text has escapes.
  std::string_view read_string(std::string& unescaped);
  // Reads a number. Sets `whole` to whether it has neither a point nor an exponent.
  std::string_view read_number(bool& whole);

  std::string_view text_;  // all of the input
  size_t at_ = 0;          // number of bytes of text_ that have been read

 private:
  void append_escape(std::string& to);
  uint32_t read_unit();
  void check_utf8(size_t from, size_t to);

  static constexpr size_t kLongestPlace = 200;  // maximum length of a path in LimitReached

  core::Budget* budget_;  // null: there is no limit
  size_t max_depth_;      // the maximum depth of nested lists and objects
  size_t depth_ = 0;      // number of open lists and objects
};

}  // namespace fxpress::schema
