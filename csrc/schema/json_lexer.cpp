#include "schema/json_lexer.h"

#include <bit>
#include <charconv>
#include <cstring>

namespace fxpress::schema {

namespace {

// The part of a text before the first quote, backslash or control character.
struct Plain {
  size_t size;
  bool ascii;
};
Plain find_plain(std::string_view text) {
  static_assert(std::endian::native == std::endian::little);
  constexpr uint64_t kOnes = 0x0101010101010101;
  constexpr uint64_t kHighest = 0x80 * kOnes;
  // Sets the highest bit of the first byte below `limit`, and perhaps bits of later bytes.
  const auto below = [](uint64_t word, uint64_t limit) {
    return (word - limit * kOnes) & ~word & kHighest;
  };
  uint64_t seen = 0;  // bitwise or of all bytes
  size_t at = 0;
  for (; at + sizeof(uint64_t) <= text.size(); at += sizeof(uint64_t)) {
    uint64_t word = 0;
    std::memcpy(&word, text.data() + at, sizeof word);
    const uint64_t end =
        below(word ^ ('"' * kOnes), 1) | below(word ^ ('\\' * kOnes), 1) | below(word, 0x20);
    if (end != 0) {
      seen |= word & ((end & (~end + 1)) - 1);
      return {at + static_cast<size_t>(std::countr_zero(end)) / 8, (seen & kHighest) == 0};
    }
    seen |= word;
  }
  for (; at < text.size(); ++at) {
    const auto byte = static_cast<unsigned char>(text[at]);
    if (byte == '"' || byte == '\\' || byte < 0x20) break;
    seen |= byte;
  }
  return {at, (seen & kHighest) == 0};
}

}  // namespace

std::string shown(std::string_view text) {
  constexpr size_t kLongest = 200;
  constexpr std::string_view kHex = "0123456789abcdef";
  std::string result;
  for (const char c : text.substr(0, kLongest)) {
    const auto byte = static_cast<unsigned char>(c);
    if (byte >= 0x20 && byte < 0x7f) {
      result += c;
    } else {
      result += {'\\', 'x', kHex[byte >> 4u], kHex[byte & 15u]};
    }
  }
  return result;
}

void JsonLexer::fail(const std::string& what) const {
  throw JsonError(place() + ": " + what + " (at byte " + std::to_string(at_) + ")");
}

void JsonLexer::fail_expected(const char* expected, size_t from) const {
  const std::string_view rest = text_.substr(from);
  const std::string found = shown(rest.substr(0, rest.find_first_of(",:]} \n")));
  fail(std::string("expected ") + expected + ", found '" + found + "'");
}

void JsonLexer::expect(char expected) {
  if (accept(expected)) return;
  if (at_ == text_.size()) fail("unexpected end of the text");
  fail(std::string("expected '") + expected + "', found '" + shown(text_.substr(at_, 1)) + "'");
}

void JsonLexer::enter() {
  if (++depth_ <= max_depth_ && core::stack_has_space()) return;
  if (budget_ == nullptr) fail("values are nested too deeply");
  throw core::LimitReached("depth", place().substr(0, kLongestPlace));
}

void JsonLexer::check_utf8(size_t from, size_t to) {
  for (size_t i = from; i < to;) {
    const auto byte = static_cast<unsigned char>(text_[i]);
    if (byte < 0x80) {
      ++i;
      continue;
    }
    const int more = byte >= 0xf0 ? 3 : byte >= 0xe0 ? 2 : 1;
    uint32_t code = byte & (0x3fu >> static_cast<unsigned>(more));
    bool good = byte >= 0xc2 && byte <= 0xf4 && i + static_cast<size_t>(more) < to;
    for (int k = 1; good && k <= more; ++k) {
      const auto next = static_cast<unsigned char>(text_[i + static_cast<size_t>(k)]);
      good = (next & 0xc0u) == 0x80u;
      code = (code << 6u) | (next & 0x3fu);
    }
    const bool shortest =
        more == 1 || (more == 2 && code >= 0x800) || (more == 3 && code >= 0x10000);
    if (!good || !shortest || code > 0x10ffff || (code >= 0xd800 && code < 0xe000)) {
      at_ = i;
      fail("a string is not valid UTF-8");
    }
    i += 1 + static_cast<size_t>(more);
  }
}

std::string_view JsonLexer::read_string(std::string& unescaped) {
  if (peek() != '"') fail_expected("a string", at_);
  const size_t start = ++at_;
  bool ascii = true;
  const auto scan = [&] {
    const Plain plain = find_plain(text_.substr(at_));
    at_ += plain.size;
    ascii &= plain.ascii;
    if (at_ == text_.size()) fail("unexpected end of the text");
  };
  scan();
  std::string_view result = text_.substr(start, at_ - start);
  if (text_[at_] != '"') {
    unescaped.assign(result);
    while (text_[at_] != '"') {
      if (text_[at_] != '\\') fail("a string contains a control character");
      append_escape(unescaped);
      const size_t from = at_;
      scan();
      unescaped.append(text_.substr(from, at_ - from));
    }
    result = unescaped;
  }
  if (!ascii) {
    const size_t end = at_;
    check_utf8(start, end);
    at_ = end;
  }
  ++at_;
  return result;
}

uint32_t JsonLexer::read_unit() {
  uint32_t unit = 0;
  const char* from = text_.data() + at_;
  const char* end = text_.data() + text_.size();
  if (end - from < 4 || std::from_chars(from, from + 4, unit, 16).ptr != from + 4) {
    fail("expected four hexadecimal digits after \\u");
  }
  at_ += 4;
  return unit;
}

void JsonLexer::append_escape(std::string& to) {
  if (at_ + 1 >= text_.size()) fail("unexpected end of the text");
  const char kind = text_[at_ + 1];
  constexpr std::string_view kFrom = "\"\\/bfnrt";
  constexpr std::string_view kTo = "\"\\/\b\f\n\r\t";
  if (const size_t i = kFrom.find(kind); i != std::string_view::npos) {
    to += kTo[i];
    at_ += 2;
    return;
  }
  if (kind != 'u') fail("a string contains an unknown escape");
  at_ += 2;
  uint32_t code = read_unit();
  if (code >= 0xd800 && code < 0xdc00 && text_.substr(at_).starts_with("\\u")) {
    const size_t before = at_;
    at_ += 2;
    const uint32_t low = read_unit();
    if (low >= 0xdc00 && low < 0xe000) {
      code = 0x10000 + ((code - 0xd800) << 10u) + (low - 0xdc00);
    } else {
      at_ = before;  // a lone surrogate, which Python accepts
    }
  }
  const auto add = [&](uint32_t byte) { to += static_cast<char>(byte); };
  if (code < 0x80) {
    add(code);
  } else if (code < 0x800) {
    add(0xc0u | (code >> 6u));
    add(0x80u | (code & 0x3fu));
  } else {
    if (code < 0x10000) {
      add(0xe0u | (code >> 12u));
    } else {
      add(0xf0u | (code >> 18u));
      add(0x80u | ((code >> 12u) & 0x3fu));
    }
    add(0x80u | ((code >> 6u) & 0x3fu));
    add(0x80u | (code & 0x3fu));
  }
}

std::string_view JsonLexer::read_number(bool& whole) {
  skip_space();
  const size_t start = at_;
  const auto digits = [&] {
    const size_t from = at_;
    while (at_ < text_.size() && text_[at_] >= '0' && text_[at_] <= '9') ++at_;
    if (at_ == from) fail_expected("a number", start);
    return at_ - from;
  };
  const auto at = [&](char c) { return at_ < text_.size() && text_[at_] == c; };
  if (at('-')) ++at_;
  const size_t first = at_;
  if (digits() > 1 && text_[first] == '0') fail("a number has a leading 0");
  whole = true;
  if (at('.')) {
    whole = false;
    ++at_;
    digits();
  }
  if (at('e') || at('E')) {
    whole = false;
    ++at_;
    if (at('+') || at('-')) ++at_;
    digits();
  }
  return text_.substr(start, at_ - start);
}

}  // namespace fxpress::schema
