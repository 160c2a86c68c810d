// Defines hash tables with text keys. The hash function depends on a random secret of the process.
// Without it, a file could contain many texts with one hash, and make lookups linear searches.
#pragma once

#include <cstdint>
#include <cstring>
#include <functional>
#include <string>
#include <string_view>
#include <unordered_map>
#include <unordered_set>

namespace fxpress::core {

struct TextSecret {
  uint64_t start, step, end;
};
extern const TextSecret text_secret;

// Hashes 8 bytes per step: multiplies by the secret, and combines the halves of the product by xor.
struct TextHash {
  using is_transparent = void;
  size_t operator()(std::string_view text) const {
    const char* at = text.data();
    size_t left = text.size();
    uint64_t hash = text_secret.start ^ left;
    for (; left > 8; at += 8, left -= 8) hash = fold(hash ^ read(at, 8), text_secret.step);
    return fold(fold(hash ^ read(at, left), text_secret.step), text_secret.end);
  }

 private:
  static uint64_t read(const char* at, size_t count) {
    uint64_t value = 0;
    if (count != 0) std::memcpy(&value, at, count);
    return value;
  }
  static uint64_t fold(uint64_t a, uint64_t b) {
    __extension__ using Product = unsigned __int128;
    const Product product = static_cast<Product>(a) * b;
    return static_cast<uint64_t>(product) ^ static_cast<uint64_t>(product >> 64u);
  }
};

template <class T>
using TextMap = std::unordered_map<std::string, T, TextHash, std::equal_to<>>;
template <class T>
using TextViewMap = std::unordered_map<std::string_view, T, TextHash, std::equal_to<>>;
using TextSet = std::unordered_set<std::string, TextHash, std::equal_to<>>;
using TextViewSet = std::unordered_set<std::string_view, TextHash, std::equal_to<>>;

}  // namespace fxpress::core
