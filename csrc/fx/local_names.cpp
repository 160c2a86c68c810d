#include "fx/local_names.h"

#include <algorithm>
#include <array>
#include <unordered_map>
#include <utility>

#include "core/characters.h"

namespace fxpress::fx {

namespace {

// Keys are kept for a while, and one of a huge partition would never be met again.
constexpr size_t kMaxText = size_t{1} << 16;

// Whether a name may contain the character. A table, since every character of a text is looked at.
constexpr std::array<bool, 256> kWord = [] {
  std::array<bool, 256> word{};
  for (unsigned c = '0'; c <= '9'; ++c) word[c] = true;
  for (unsigned c = 'a'; c <= 'z'; ++c) word[c] = word[c - 'a' + 'A'] = true;
  word['_'] = true;
  return word;
}();
bool is_word(char c) {
  return kWord[static_cast<unsigned char>(c)];
}

// The characters of a name, from `begin` on.
std::string_view word_at(std::string_view text, size_t begin) {
  size_t end = begin;
  while (end < text.size() && is_word(text[end])) ++end;
  return text.substr(begin, end - begin);
}

class LocalNames {
 public:
  // The number of a name, counted in order of first appearance.
  size_t number(std::string_view name) {
    const auto [it, added] = numbers_.emplace(name, order_.size());
    if (added) {
      order_.push_back(name);
      seen_[trait(name)] = true;
    }
    return it->second;
  }
  bool contains(std::string_view name) const {
    return seen_[trait(name)] && numbers_.contains(name);
  }
  std::vector<std::string_view> take() { return std::move(order_); }

 private:
  // Most words of a text are no locals: says so without hashing them.
  static size_t trait(std::string_view name) {
    const auto byte = [](char c) { return static_cast<unsigned char>(c); };
    return (byte(name.front()) * 37u + byte(name.back()) * 5u + name.size()) % 1024u;
  }

  std::unordered_map<std::string_view, size_t> numbers_;  // by name
  std::vector<std::string_view> order_;                   // by number
  std::array<bool, 1024> seen_{};                         // by trait: some name has it
};

// Whether an unmarked word names a local, too: a placeholder may be called like a global (`torch`,
// `max`), and the repr of an argument may be the name of a value (symbolic sizes). The word means
// the local then, and in a text with other names it does not.
bool mentions_local(std::string_view marked, const LocalNames& names) {
  for (size_t at = 0; at < marked.size();) {
    if (marked[at] == kLocalMark) {
      at += 1 + word_at(marked, at + 1).size();
      continue;
    }
    const std::string_view word = word_at(marked, at);
    if (word.empty()) {
      ++at;
      continue;
    }
    const size_t end = at + word.size();
    const bool attribute = at > 0 && marked[at - 1] == '.';
    const bool keyword = marked.substr(end, 3) == " = ";  // what is assigned to is marked
    if (!attribute && !keyword && names.contains(word)) return true;
    at = end;
  }
  return false;
}

}  // namespace

std::string without_marks(std::string_view marked) {
  std::string text;
  text.reserve(marked.size());
  for (size_t at = 0;;) {
    const size_t mark = std::min(marked.find(kLocalMark, at), marked.size());
    text += marked.substr(at, mark - at);
    if (mark == marked.size()) return text;
    at = mark + 1;
  }
}

std::optional<TextShape> text_shape(std::string_view marked) {
  // Python normalizes identifiers beyond ASCII: they may be equal though their text differs.
  if (marked.size() > kMaxText || !std::all_of(marked.begin(), marked.end(), core::is_ascii))
    return {};
  TextShape shape;
  shape.key.reserve(marked.size());
  LocalNames names;
  for (size_t at = 0;;) {
    const size_t mark = std::min(marked.find(kLocalMark, at), marked.size());
    shape.key += marked.substr(at, mark - at);
    if (mark == marked.size()) break;
    const std::string_view name = word_at(marked, mark + 1);
    if (name.empty() || core::is_digit(name.front())) return {};
    shape.key += kLocalMark;
    shape.key += std::to_string(names.number(name));
    shape.key += ':';
    shape.key += std::to_string(name.size());  // columns of the compiled code depend on it
    at = mark + 1 + name.size();
  }
  if (mentions_local(marked, names)) return {};
  shape.names = names.take();
  return shape;
}

}  // namespace fxpress::fx
