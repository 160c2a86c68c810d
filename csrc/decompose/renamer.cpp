#include "decompose/renamer.h"

#include <algorithm>
#include <cstdlib>

namespace fxpress::decompose {

namespace {

bool is_digit(char c) {
  return c >= '0' && c <= '9';
}

// What precedes the last underscore that a digit follows, and the digits behind it; npos and
// nothing where there is none. torch looks for it without asking that the name ends there.
struct Suffix {
  size_t at = std::string_view::npos;  // of the underscore
  unsigned long number = 0;
};

Suffix suffix_of(std::string_view name) {
  for (size_t at = name.size(); at-- > 0;) {
    if (name[at] != '_' || at + 1 == name.size() || !is_digit(name[at + 1])) continue;
    size_t end = at + 1;
    while (end < name.size() && is_digit(name[end])) ++end;
    return {at, std::strtoul(std::string(name.substr(at + 1, end - at - 1)).c_str(), nullptr, 10)};
  }
  return {};
}

}  // namespace

std::string_view Renamer::take(std::string_view name) {
  const Suffix suffix = suffix_of(name);
  if (suffix.at != std::string_view::npos) {
    unsigned long& highest = highest_[std::string(name.substr(0, suffix.at))];
    highest = std::max(highest, suffix.number);
  }
  return *used_.emplace(name).first;
}

std::string_view Renamer::take_next(std::string_view base) {
  const std::string prefix(base);
  return take(prefix + "_" + std::to_string(highest_[prefix] + 1));
}

std::string_view Renamer::placeholder(std::string_view name) {
  return is_free(name) ? take(name) : take_next(name);
}

std::string_view Renamer::node(std::string_view name) {
  return is_free(name) ? take(name) : take_next(name.substr(0, suffix_of(name).at));
}

}  // namespace fxpress::decompose
