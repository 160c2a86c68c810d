// A hash table by text that is asked with any text.
#pragma once

#include <functional>
#include <string>
#include <string_view>
#include <unordered_map>

namespace fxpress::serde {

struct TextHash {
  using is_transparent = void;
  size_t operator()(std::string_view text) const { return std::hash<std::string_view>()(text); }
};

template <class T>
using TextMap = std::unordered_map<std::string, T, TextHash, std::equal_to<>>;

// The entry for a text, which is made when there is none.
template <class T>
T& entry(TextMap<T>& map, std::string_view text) {
  if (const auto known = map.find(text); known != map.end()) return known->second;
  return map.emplace(text, T()).first->second;
}

}  // namespace fxpress::serde
