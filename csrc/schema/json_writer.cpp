#include "schema/json_writer.h"

#include <algorithm>
#include <array>
#include <charconv>
#include <cmath>
#include <cstring>

namespace fxpress::schema {

namespace {

constexpr std::string_view kHex = "0123456789abcdef";

constexpr bool is_plain(unsigned char byte) {
  return byte >= 0x20 && byte < 0x7f && byte != '"' && byte != '\\';
}

constexpr std::array<bool, 256> kPlain = [] {
  std::array<bool, 256> table{};
  for (size_t i = 0; i < table.size(); ++i) table[i] = is_plain(static_cast<unsigned char>(i));
  return table;
}();

char* write_unit(char* to, uint32_t unit) {
  *to++ = '\\';
  *to++ = 'u';
  for (int shift = 12; shift >= 0; shift -= 4) *to++ = kHex[(unit >> shift) & 15u];
  return to;
}

// Writes the character at text[i], which needs an escape; advances i past it.
char* write_escaped(char* to, std::string_view text, size_t& i) {
  const auto byte = static_cast<unsigned char>(text[i]);
  constexpr std::string_view kFrom = "\"\\\n\r\t\f\b";
  constexpr std::string_view kTo = "\"\\nrtfb";
  if (const size_t k = kFrom.find(text[i]); k != std::string_view::npos) {
    *to++ = '\\';
    *to++ = kTo[k];
    ++i;
    return to;
  }
  const int more = byte >= 0xf0 ? 3 : byte >= 0xe0 ? 2 : byte >= 0xc0 ? 1 : 0;
  uint32_t code = more == 0 ? byte : byte & (0x3fu >> more);
  for (int k = 1; k <= more && i + static_cast<size_t>(k) < text.size(); ++k) {
    code = (code << 6u) | (static_cast<unsigned char>(text[i + static_cast<size_t>(k)]) & 0x3fu);
  }
  i = std::min(text.size(), i + 1 + static_cast<size_t>(more));
  if (code < 0x10000) return write_unit(to, code);
  code -= 0x10000;
  return write_unit(write_unit(to, 0xd800u + (code >> 10u)), 0xdc00u + (code & 0x3ffu));
}

}  // namespace

void Buffer::append(std::string_view text) {
  std::memcpy(reserve(text.size()), text.data(), text.size());
  size_ += text.size();
}

char* Buffer::reserve(size_t size) {
  if (capacity_ - size_ < size) grow(std::max(size_ + size, capacity_ + capacity_ / 4));
  return data_ + size_;
}

void StringBuffer::grow(size_t capacity) {
  memory_.resize(std::max<size_t>(capacity, 256));
  data_ = memory_.data();
  capacity_ = memory_.size();
}

void write_json_string(Buffer& out, std::string_view text) {
  constexpr size_t kBlock = 512;  // bytes that are processed per reservation
  constexpr size_t kLongest = 6;  // maximum bytes written for a byte of the text
  out.append("\"");
  for (size_t i = 0; i < text.size();) {
    const size_t end = std::min(text.size(), i + kBlock);
    char* const start = out.reserve(kBlock * kLongest + 2 * kLongest);
    char* to = start;
    while (i < end) {
      size_t plain = i;
      while (plain < end && kPlain[static_cast<unsigned char>(text[plain])]) ++plain;
      std::memcpy(to, text.data() + i, plain - i);
      to += plain - i;
      i = plain;
      if (i < end) to = write_escaped(to, text, i);
    }
    out.advance(static_cast<size_t>(to - start));
  }
  out.append("\"");
}

void write_json_integer(Buffer& out, int64_t value) {
  char* start = out.reserve(24);
  out.advance(static_cast<size_t>(std::to_chars(start, start + 24, value).ptr - start));
}

void write_json_real(Buffer& out, double value) {
  if (std::isnan(value)) return out.append("\"NaN\"");
  if (std::isinf(value)) return out.append(value > 0 ? "\"Infinity\"" : "\"-Infinity\"");
  const double size = std::abs(value);
  const bool is_fixed = size == 0 || (size >= 1e-4 && size < 1e16);  // the rule of Python's repr()
  const auto format = is_fixed ? std::chars_format::fixed : std::chars_format::scientific;
  std::array<char, 32> text{};
  const char* end = std::to_chars(text.data(), text.data() + text.size(), value, format).ptr;
  const std::string_view digits(text.data(), static_cast<size_t>(end - text.data()));
  out.append(digits);
  if (is_fixed && digits.find('.') == std::string_view::npos) out.append(".0");
}

Buffer& JsonWriter::separate() {
  if (!levels_.empty() && levels_.back().list) add_comma();
  return out_;
}

void JsonWriter::add_comma() {
  Level& level = levels_.back();
  if (!level.first) out_.append(", ");
  level.first = false;
}

void JsonWriter::open(Level level, char bracket) {
  separate().append({&bracket, 1});
  levels_.push_back(level);
}

void JsonWriter::close(char bracket) {
  levels_.pop_back();
  out_.append({&bracket, 1});
}

void JsonWriter::field(size_t position) {
  add_comma();
  out_.append(levels_.back().type->fields[position].key);
}

void JsonWriter::begin_union(const TypeInfo& type, size_t position) {
  open({&type, false, true}, '{');
  out_.append(type.fields[position].key);
}

void JsonWriter::key(std::string_view key) {
  add_comma();
  write_json_string(out_, key);
  out_.append(": ");
}

}  // namespace fxpress::schema
