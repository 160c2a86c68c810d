// Reads a JSON text word by word: quoted texts, numbers, and the marks between them.
#pragma once

#include <cstdint>
#include <stdexcept>
#include <string>
#include <string_view>

#include "core/budget.h"

namespace fxpress::schema {

// Text that is not JSON or not of the schema. what() names the place as a path and as an offset.
class JsonError : public std::runtime_error {
 public:
  using std::runtime_error::runtime_error;
};

inline constexpr size_t kMaxDepth = 1000;  // values within each other: as in Python's own reader

// A piece of a text in an error: printable ASCII.
std::string shown(std::string_view text);

// What readers of JSON have in common. Errors are JsonError, or LimitReached of the budget.
class JsonLexer {
 protected:
  // What is read is charged to `budget`, if there is one, which also says how deep values may be.
  JsonLexer(std::string_view text, core::Budget* budget)
      : text_(text), budget_(budget), max_depth_(budget == nullptr ? kMaxDepth : budget->depth()) {}
  ~JsonLexer() = default;

  // The place at work, for errors.
  virtual std::string place() const = 0;

  [[noreturn]] void fail(const std::string& what) const;

  void skip_space() {
    while (at_ < text_.size() &&
           (text_[at_] == ' ' || text_[at_] == '\n' || text_[at_] == '\t' || text_[at_] == '\r')) {
      ++at_;
    }
  }
  // The first character of what comes next; 0 at the end.
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
  // Nothing may come but space.
  void expect_end() {
    skip_space();
    if (at_ != text_.size()) fail("there is something behind the value");
  }

  void enter();
  void leave() { --depth_; }
  // Values take so many bytes: where they wait on a stack that doubles, and where they stay.
  void charge(uint64_t bytes) {
    if (budget_ != nullptr) budget_->charge(bytes);
  }

  // The items of a list, or the entries of an object: calls read() at each.
  template <class F>
  void each(char open, char close, uint64_t item_bytes, F&& read) {
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

  // A quoted text. Valid until the next one is read, unless it has no escapes.
  std::string_view read_string(std::string& unescaped);
  // A number, and whether it has neither a point nor an exponent.
  std::string_view read_number(bool& whole);

  std::string_view text_;  // the whole
  size_t at_ = 0;          // bytes read

 private:
  void append_escape(std::string& to);
  uint32_t read_unit();
  void check_utf8(size_t from, size_t to);

  static constexpr size_t kLongestPlace = 200;  // characters, in an error

  core::Budget* budget_;  // null: there is no limit
  size_t max_depth_;      // of values that are open
  size_t depth_ = 0;      // values that are open
};

}  // namespace fxpress::schema
