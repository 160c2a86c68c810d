// Texts of expressions, as sympy.srepr writes them.
#pragma once

#include <string_view>
#include <vector>

namespace fxpress::schema {

// Splits at the commas that are not inside of brackets or quotes.
inline std::vector<std::string_view> split_arguments(std::string_view text) {
  std::vector<std::string_view> parts;
  size_t start = 0;
  int depth = 0;
  bool quoted = false;
  for (size_t i = 0; i <= text.size(); ++i) {
    const char c = i < text.size() ? text[i] : ',';
    if (c == '\'') quoted = !quoted;
    if (!quoted && c == '(') ++depth;
    if (!quoted && c == ')') --depth;
    if (i < text.size() && (quoted || depth != 0 || c != ',')) continue;
    while (start < i && text[start] == ' ') ++start;
    parts.push_back(text.substr(start, i - start));
    start = i + 1;
  }
  return parts;
}

}  // namespace fxpress::schema
