#include "schema/json_reader.h"

#include <algorithm>
#include <bit>
#include <charconv>
#include <cstring>
#include <limits>
#include <utility>
#include <vector>

#include "schema/json_keys.h"

namespace fxpress::schema {

namespace {

// The bytes that the reader charges for an item of a list, and for an entry of a map.
constexpr uint64_t kItemBytes = 2 * sizeof(Value);
constexpr uint64_t kEntryBytes = 5 * sizeof(Value);
constexpr size_t kLongestPlace = 200;  // characters, in an error

// A step of the path to the value at work, for errors.
struct Step {
  std::string_view name;  // of a field or a key; empty: of an item
  size_t index = 0;       // of an item
  bool key = false;       // of a map
};

// A piece of the text in an error: printable ASCII.
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

// Whether a number that is too long for a double is too large, and not too small.
bool is_large(std::string_view digits) {
  const size_t mark = digits.find_first_of("eE");
  long exponent = 0;
  if (mark != std::string_view::npos) {
    std::string_view text = digits.substr(mark + 1);
    const bool negative = text.front() == '-';
    if (negative || text.front() == '+') text.remove_prefix(1);
    constexpr long kHuge = 1000000000;
    if (std::from_chars(text.data(), text.data() + text.size(), exponent).ec != std::errc()) {
      exponent = kHuge;
    }
    if (negative) exponent = -exponent;
  }
  const std::string_view mantissa = digits.substr(0, mark);
  const size_t point = std::min(mantissa.find('.'), mantissa.size());
  const size_t first = mantissa.find_first_of("123456789");
  if (first == std::string_view::npos) return false;
  return static_cast<long>(point) - static_cast<long>(first) + exponent > 0;
}

// How many bytes of a text there are before its quote, escape or control character, and whether
// they are ASCII. Eight are looked at at once: each of the three finds sets the highest bit of a
// byte that is one, and no lower bit of the word.
struct Plain {
  size_t size;
  bool ascii;
};
Plain find_plain(std::string_view text) {
  static_assert(std::endian::native == std::endian::little);
  constexpr uint64_t kOnes = 0x0101010101010101;
  constexpr uint64_t kHighest = 0x80 * kOnes;
  const auto below = [](uint64_t word, uint64_t limit) {
    return (word - limit * kOnes) & ~word & kHighest;
  };
  uint64_t seen = 0;  // the bits of all bytes
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

class Reader {
 public:
  Reader(std::string_view text, const Schema& schema, core::Budget* budget)
      : text_(text),
        schema_(schema),
        budget_(budget),
        max_depth_(budget == nullptr ? kMaxDepth : budget->depth()),
        builder_(schema),
        likely_(schema.size()) {}

  Document read(uint16_t type) {
    read_type(type);
    skip_space();
    if (at_ != text_.size()) fail("there is something behind the value");
    return builder_.finish();
  }

 private:
  [[noreturn]] void fail(const std::string& what) const {
    throw JsonError(place() + ": " + what + " (at byte " + std::to_string(at_) + ")");
  }

  std::string place() const {
    std::string path;
    for (const Step& step : path_) {
      if (step.key) {
        path += "['" + shown(step.name) + "']";
      } else if (step.name.empty()) {
        path += '[' + std::to_string(step.index) + ']';
      } else {
        if (!path.empty()) path += '.';
        path += step.name;
      }
    }
    return path.empty() ? "at the top" : path;
  }

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
  void expect(char expected) {
    if (accept(expected)) return;
    if (at_ == text_.size()) fail("the text ends too early");
    fail(std::string("expected '") + expected + "', found '" + shown(text_.substr(at_, 1)) + "'");
  }
  bool accept_word(std::string_view word) {
    skip_space();
    if (!text_.substr(at_).starts_with(word)) return false;
    at_ += word.size();
    return true;
  }

  void enter() {
    if (++depth_ <= max_depth_ && core::stack_has_room()) return;
    if (budget_ == nullptr) fail("values are nested too deeply");
    throw core::LimitReached("depth", place().substr(0, kLongestPlace));
  }
  // Values take so many bytes: where they wait on a stack that doubles, and in the document.
  void charge(uint64_t bytes) {
    if (budget_ != nullptr) budget_->charge(bytes);
  }
  void leave() { --depth_; }

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
  void append_escape(std::string& to);
  uint32_t read_unit();
  std::string_view read_number(bool& whole);
  void check_utf8(size_t from, size_t to);

  void read_new_key(JsonKeys& keys);
  int read_field(const TypeInfo& type, size_t likely);

  void read_type(uint16_t type);
  void read_record(const TypeInfo& type);
  void read_union(uint16_t type_id);
  void read_shape(uint16_t shape);
  void read_integer();
  void read_real();
  void read_map(uint16_t of);
  void skip_value();

  std::string_view text_;       // the whole
  const Schema& schema_;        // what the text must follow
  core::Budget* budget_;        // null: there is no limit
  size_t max_depth_;            // of values that are open
  DocumentBuilder builder_;     // what was read
  std::vector<Step> path_;      // the place at work
  std::vector<size_t> likely_;  // by type: which kind the last union had
  std::string value_;           // an unescaped string
  size_t at_ = 0;               // bytes read
  size_t depth_ = 0;            // values that are open
};

void Reader::check_utf8(size_t from, size_t to) {
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
      fail("a text is not UTF-8");
    }
    i += 1 + static_cast<size_t>(more);
  }
}

std::string_view Reader::read_string(std::string& unescaped) {
  if (peek() != '"') fail("expected a text");
  const size_t start = ++at_;
  bool ascii = true;
  const auto scan = [&] {
    const Plain plain = find_plain(text_.substr(at_));
    at_ += plain.size;
    ascii &= plain.ascii;
    if (at_ == text_.size()) fail("the text ends too early");
  };
  scan();
  std::string_view result = text_.substr(start, at_ - start);
  if (text_[at_] != '"') {
    unescaped.assign(result);
    while (text_[at_] != '"') {
      if (text_[at_] != '\\') fail("a text has a control character");
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

uint32_t Reader::read_unit() {
  uint32_t unit = 0;
  const char* from = text_.data() + at_;
  const char* end = text_.data() + text_.size();
  if (end - from < 4 || std::from_chars(from, from + 4, unit, 16).ptr != from + 4) {
    fail("\\u needs four hexadecimal digits");
  }
  at_ += 4;
  return unit;
}

void Reader::append_escape(std::string& to) {
  if (at_ + 1 >= text_.size()) fail("the text ends too early");
  const char kind = text_[at_ + 1];
  constexpr std::string_view kFrom = "\"\\/bfnrt";
  constexpr std::string_view kTo = "\"\\/\b\f\n\r\t";
  if (const size_t i = kFrom.find(kind); i != std::string_view::npos) {
    to += kTo[i];
    at_ += 2;
    return;
  }
  if (kind != 'u') fail("a text has an unknown escape");
  at_ += 2;
  uint32_t code = read_unit();
  if (code >= 0xd800 && code < 0xdc00 && text_.substr(at_).starts_with("\\u")) {
    const size_t before = at_;
    at_ += 2;
    const uint32_t low = read_unit();
    if (low >= 0xdc00 && low < 0xe000) {
      code = 0x10000 + ((code - 0xd800) << 10u) + (low - 0xdc00);
    } else {
      at_ = before;  // a surrogate on its own, as Python takes it
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

std::string_view Reader::read_number(bool& whole) {
  skip_space();
  const size_t start = at_;
  const auto digits = [&] {
    const size_t from = at_;
    while (at_ < text_.size() && text_[at_] >= '0' && text_[at_] <= '9') ++at_;
    if (at_ == from) fail("expected a number");
    return at_ - from;
  };
  const auto at = [&](char c) { return at_ < text_.size() && text_[at_] == c; };
  if (at('-')) ++at_;
  const size_t first = at_;
  if (digits() > 1 && text_[first] == '0') fail("a number starts with 0");
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

void Reader::read_integer() {
  bool whole = false;
  const std::string_view digits = read_number(whole);
  if (!whole) fail("expected an integer");
  int64_t value = 0;
  const auto [end, error] = std::from_chars(digits.data(), digits.data() + digits.size(), value);
  if (error == std::errc()) return builder_.integer(value);
  if (digits.size() > 4300) fail("an integer has too many digits");  // Python's own limit
  builder_.big_integer(digits);
}

void Reader::read_real() {
  if (peek() == '"') {
    const std::string_view text = read_string(value_);
    constexpr double kInfinity = std::numeric_limits<double>::infinity();
    if (text == "Infinity") return builder_.real(kInfinity);
    if (text == "-Infinity") return builder_.real(-kInfinity);
    if (text == "NaN") return builder_.real(std::numeric_limits<double>::quiet_NaN());
    fail("expected a number");
  }
  bool whole = false;
  const std::string_view digits = read_number(whole);
  double value = 0;
  const auto [end, error] = std::from_chars(digits.data(), digits.data() + digits.size(), value);
  if (error == std::errc::result_out_of_range) {  // Python reads infinity, or zero
    value = is_large(digits) ? std::numeric_limits<double>::infinity() : 0.0;
    if (digits.front() == '-') value = -value;
  }
  builder_.real(value);
}

void Reader::read_new_key(JsonKeys& keys) {
  const std::string_view key = read_string(value_);
  if (!keys.add(key, key.data() != value_.data())) {
    fail("the key '" + shown(key) + "' comes twice");
  }
}

// The field whose key comes next, which mostly is a likely one, written as usual. -1: a record has
// no field of that name.
int Reader::read_field(const TypeInfo& type, size_t likely) {
  if (likely < type.fields.size() && accept_word(type.fields[likely].key)) {
    return static_cast<int>(likely);
  }
  const std::string_view name = read_string(value_);
  const int field = type.find(name);
  if (field < 0 && type.is_union) fail(type.name + " has no kind '" + shown(name) + "'");
  expect(':');
  return field;
}

void Reader::read_map(uint16_t of) {
  JsonKeys keys;
  builder_.begin_map();
  each('{', '}', kEntryBytes, [&] {
    read_new_key(keys);
    builder_.key(keys.last());
    path_.push_back({keys.last(), 0, true});
    expect(':');
    read_shape(of);
    path_.pop_back();
  });
  builder_.end_map();
}

void Reader::read_shape(uint16_t shape_id) {
  const Shape shape = schema_.shape(shape_id);
  switch (shape.kind) {
    case Kind::kBool:
      if (accept_word("true")) return builder_.boolean(true);
      if (accept_word("false")) return builder_.boolean(false);
      fail("expected true or false");
    case Kind::kInt:
      return read_integer();
    case Kind::kFloat:
      return read_real();
    case Kind::kString:
      return builder_.string(read_string(value_));
    case Kind::kOptional:
      if (accept_word("null")) return builder_.null();
      return read_shape(shape.of);
    case Kind::kList: {
      size_t index = 0;
      builder_.begin_list();
      each('[', ']', kItemBytes, [&] {
        path_.push_back({{}, index++, false});
        read_shape(shape.of);
        path_.pop_back();
      });
      return builder_.end_list();
    }
    case Kind::kMap:
      return read_map(shape.of);
    case Kind::kRecord:
    case Kind::kUnion:
      return read_type(shape.of);
  }
}

void Reader::read_type(uint16_t type) {
  const TypeInfo& info = schema_.type(type);
  return info.is_union ? read_union(type) : read_record(info);
}

void Reader::read_record(const TypeInfo& type) {
  size_t expected = 0;  // the field that comes next when the text is in the order of the schema
  builder_.begin_record(type);
  charge(type.fields.size() * sizeof(Value));
  each('{', '}', 0, [&] {
    const int field = read_field(type, expected);
    if (field < 0) return skip_value();
    const auto position = static_cast<size_t>(field);
    path_.push_back({type.fields[position].name, 0, false});
    if (builder_.has_field(position)) fail("the key comes twice");
    builder_.field(position);
    read_shape(type.fields[position].shape);
    path_.pop_back();
    expected = position + 1;
  });
  for (size_t i = 0; i < type.fields.size(); ++i) {
    if (builder_.has_field(i)) continue;
    const FieldInfo& field = type.fields[i];
    if (field.required) fail("the key '" + field.name + "' of " + type.name + " is missing");
    const std::string_view text = std::exchange(text_, field.default_value);
    const size_t at = std::exchange(at_, 0);
    builder_.field(i);
    read_shape(field.shape);
    text_ = text;
    at_ = at;
  }
  builder_.end_record();
}

void Reader::read_union(uint16_t type_id) {
  const TypeInfo& type = schema_.type(type_id);
  bool found = false;
  charge(sizeof(Value));
  each('{', '}', 0, [&] {
    if (found) fail(type.name + " has more than one key");
    found = true;
    size_t& likely = likely_[type_id];
    likely = static_cast<size_t>(read_field(type, likely));
    const FieldInfo& info = type.fields[likely];
    builder_.begin_union(type, likely);
    path_.push_back({info.name, 0, false});
    read_shape(info.shape);
    path_.pop_back();
  });
  if (!found) fail(type.name + " is empty");
  builder_.end_union();
}

void Reader::skip_value() {
  switch (peek()) {
    case '"':
      read_string(value_);
      return;
    case '{': {
      JsonKeys keys;
      return each('{', '}', kEntryBytes, [&] {
        read_new_key(keys);
        expect(':');
        skip_value();
      });
    }
    case '[':
      return each('[', ']', 0, [&] { skip_value(); });
    default:
      break;
  }
  for (const std::string_view word : {"true", "false", "null"}) {
    if (accept_word(word)) return;
  }
  bool whole = false;
  read_number(whole);
}

}  // namespace

bool is_nested_deeper(std::string_view text, size_t depth) {
  size_t open = 0;
  for (size_t i = 0; i < text.size(); ++i) {
    switch (text[i]) {
      case '"':
        for (++i; i < text.size() && text[i] != '"'; ++i) {
          if (text[i] == '\\') ++i;
        }
        break;
      case '[':
      case '{':
        if (++open > depth) return true;
        break;
      case ']':
      case '}':
        if (open > 0) --open;
        break;
      default:
        break;
    }
  }
  return false;
}

Document read_json(std::string_view text, const Schema& schema, uint16_t type,
                   core::Budget* budget) {
  return Reader(text, schema, budget).read(type);
}

}  // namespace fxpress::schema
