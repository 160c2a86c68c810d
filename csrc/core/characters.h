// Characters and words of Python's source code.
#pragma once

#include <algorithm>
#include <array>
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

// Words that are values.
inline constexpr std::array<std::string_view, 3> kConstantWords = {"None", "True", "False"};
// Words that cannot be names, but for those.
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

}  // namespace fxpress::core
