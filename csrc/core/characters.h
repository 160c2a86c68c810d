// Classifies characters and keywords of Python source code, and defines a base class of parsers.
#pragma once

#include <algorithm>
#include <array>
#include <cstddef>
#include <string_view>

namespace fxpress::core {

constexpr bool is_ascii(char c) {
  return static_cast<unsigned char>(c) < 0x80;
}
constexpr bool is_digit(char c) {
  return c >= '0' && c <= '9';
}
constexpr bool is_name_start(char c) {
  return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || c == '_';
}
constexpr bool is_name_part(char c) {
  return is_name_start(c) || is_digit(c);
}

// The Python keywords that are constants.
inline constexpr std::array<std::string_view, 3> kConstantWords = {"None", "True", "False"};
// All other Python keywords.
inline constexpr std::array<std::string_view, 32> kKeywords = {
    "and",    "as",   "assert", "async",  "await",  "break",   "class",    "continue",
    "def",    "del",  "elif",   "else",   "except", "finally", "for",      "from",
    "global", "if",   "import", "in",     "is",     "lambda",  "nonlocal", "not",
    "or",     "pass", "raise",  "return", "try",    "while",   "with",     "yield"};

inline bool is_constant_word(std::string_view word) {
  return std::ranges::find(kConstantWords, word) != kConstantWords.end();
}
inline bool is_keyword(std::string_view word) {
  return std::ranges::find(kKeywords, word) != kKeywords.end() || is_constant_word(word);
}

// Base class of parsers. Consumes a text from its start, and throws Error if the text is
// unexpected. peek(), take(), expect(), take_word() and name() skip spaces first.
template <class Error>
class Cursor {
 protected:
  explicit Cursor(std::string_view text) : rest_(text) {}

  void skip(size_t count) { rest_.remove_prefix(count); }
  void skip_spaces() { skip(std::min(rest_.find_first_not_of(' '), rest_.size())); }
  // Skips spaces, and returns the next character without consuming it; 0 at the end.
  char peek() {
    skip_spaces();
    return rest_.empty() ? '\0' : rest_.front();
  }
  bool take(char c) {
    skip_spaces();
    if (!rest_.starts_with(c)) return false;
    skip(1);
    return true;
  }
  void expect(char c) {
    if (!take(c)) throw Error();
  }
  bool take_word(std::string_view word) {
    skip_spaces();
    if (!rest_.starts_with(word)) return false;
    if (rest_.size() > word.size() && is_name_part(rest_[word.size()])) return false;
    skip(word.size());
    return true;
  }
  std::string_view name() {
    skip_spaces();
    if (rest_.empty() || !is_name_start(rest_.front())) throw Error();
    size_t end = 1;
    while (end < rest_.size() && is_name_part(rest_[end])) ++end;
    return take_characters(end);
  }
  // Returns the position after the digits that start at position `at` of rest_.
  size_t end_of_digits(size_t at) const {
    while (at < rest_.size() && is_digit(rest_[at])) ++at;
    return at;
  }
  std::string_view take_characters(size_t count) {
    const std::string_view taken = rest_.substr(0, count);
    skip(count);
    return taken;
  }

  std::string_view rest_;  // the text that is not consumed yet
};

}  // namespace fxpress::core
