#include "schema/json_reader.h"

#include <algorithm>
#include <array>
#include <charconv>
#include <forward_list>
#include <limits>
#include <string>
#include <utility>
#include <vector>

#include "core/budget.h"
#include "core/text_hash.h"

namespace fxpress::schema {

namespace {

// The memory that is charged for a list item or a map entry: in the document, in the builder's
// stack (whose capacity doubles) and, for a map entry, in JsonKeys.
constexpr uint64_t kItemBytes = 2 * sizeof(Value);
constexpr uint64_t kEntryBytes = 5 * sizeof(Value);

// A step of the path to the current value, for error messages.
struct Step {
  std::string_view name = {};  // name of a field, or key of a map; empty for an item of a list
  size_t index = 0;            // position of the item in its list
  bool is_key = false;         // `name` is a key
};

// Whether a number outside the range of double is too large, rather than too close to 0.
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

// The keys read from an object, to detect duplicates.
class JsonKeys {
 public:
  // Adds a key, which is copied unless it outlives this object. Returns false for a duplicate.
  bool add(std::string_view key, bool outlives) {
    if (has(key)) return false;
    last_ = outlives ? key : std::string_view(copies_.emplace_front(key));
    if (count_ < few_.size()) {
      few_[count_++] = last_;
    } else {
      if (many_.empty()) many_.insert(few_.begin(), few_.end());
      many_.insert(last_);
    }
    return true;
  }
  // Returns the last added key, which is valid as long as this object.
  std::string_view last() const { return last_; }

 private:
  bool has(std::string_view key) const {
    if (!many_.empty()) return many_.contains(key);
    const auto* end = few_.begin() + count_;
    return std::find(few_.begin(), end, key) != end;
  }

  std::array<std::string_view, 16> few_;   // the first keys
  size_t count_ = 0;                       // number of keys in few_
  core::TextViewSet many_;                 // all keys, once few_ is full; else empty
  std::forward_list<std::string> copies_;  // owned keys
  std::string_view last_;
};

class Reader final : JsonLexer {
 public:
  Reader(std::string_view text, const Schema& schema, core::Budget* budget)
      : JsonLexer(text, budget), schema_(schema), builder_(schema), likely_(schema.size()) {}

  Document read(uint16_t type) {
    read_type(type);
    expect_end();
    return builder_.finish();
  }

 private:
  std::string place() const override {
    std::string path;
    for (const Step& step : path_) {
      if (step.is_key) {
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

  const Schema& schema_;        // the schema of the text
  DocumentBuilder builder_;     // builds the result
  std::vector<Step> path_;      // path of the current value
  std::vector<size_t> likely_;  // by union type: the field set in the last value of this type
  std::string value_;           // buffer for a string with escapes
};

void Reader::read_integer() {
  bool whole = false;
  const std::string_view digits = read_number(whole);
  if (!whole) fail("expected an integer, found " + shown(digits));
  int64_t value = 0;
  const auto [end, error] = std::from_chars(digits.data(), digits.data() + digits.size(), value);
  if (error == std::errc()) return builder_.integer(value);
  if (digits.size() > 4300) fail("an integer has too many digits");  // Python's limit for int(str)
  builder_.big_integer(digits);
}

void Reader::read_real() {
  if (peek() == '"') {
    const std::string_view text = read_string(value_);
    constexpr double kInfinity = std::numeric_limits<double>::infinity();
    if (text == "Infinity") return builder_.real(kInfinity);
    if (text == "-Infinity") return builder_.real(-kInfinity);
    if (text == "NaN") return builder_.real(std::numeric_limits<double>::quiet_NaN());
    fail("expected a number, found '" + shown(text) + "'");
  }
  bool whole = false;
  const std::string_view digits = read_number(whole);
  double value = 0;
  const auto [end, error] = std::from_chars(digits.data(), digits.data() + digits.size(), value);
  if (error == std::errc::result_out_of_range) {  // like Python, read infinity or zero
    value = is_large(digits) ? std::numeric_limits<double>::infinity() : 0.0;
    if (digits.front() == '-') value = -value;
  }
  builder_.real(value);
}

void Reader::read_new_key(JsonKeys& keys) {
  const std::string_view key = read_string(value_);
  if (!keys.add(key, key.data() != value_.data())) {
    fail("duplicate key '" + shown(key) + "'");
  }
}

// Reads a key. Returns the position of its field in `type`, or -1 if a record has no such field.
// Tests the field at position `likely` first.
int Reader::read_field(const TypeInfo& type, size_t likely) {
  if (likely < type.fields.size() && accept_word(type.fields[likely].key)) {
    return static_cast<int>(likely);
  }
  const std::string_view name = read_string(value_);
  const int field = type.find(name);
  if (field < 0 && type.is_union) fail(type.name + " does not have a field '" + shown(name) + "'");
  expect(':');
  return field;
}

void Reader::read_map(uint16_t of) {
  JsonKeys keys;
  builder_.begin_map();
  read_items('{', '}', kEntryBytes, [&] {
    read_new_key(keys);
    builder_.key(keys.last());
    path_.push_back({.name = keys.last(), .is_key = true});
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
      fail_expected("true or false", at_);
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
      read_items('[', ']', kItemBytes, [&] {
        path_.push_back({.index = index++});
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
  size_t expected = 0;  // the field that comes next if the text has the schema's order
  builder_.begin_record(type);
  charge(type.fields.size() * sizeof(Value));
  read_items('{', '}', 0, [&] {
    const int field = read_field(type, expected);
    if (field < 0) return skip_value();
    const auto position = static_cast<size_t>(field);
    path_.push_back({.name = type.fields[position].name});
    if (builder_.has_field(position)) fail("duplicate key");
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
  read_items('{', '}', 0, [&] {
    if (found) fail(type.name + " has more than one key; expected one");
    found = true;
    size_t& likely = likely_[type_id];
    likely = static_cast<size_t>(read_field(type, likely));
    const FieldInfo& info = type.fields[likely];
    builder_.begin_union(type, likely);
    path_.push_back({.name = info.name});
    read_shape(info.shape);
    path_.pop_back();
  });
  if (!found) fail(type.name + " does not have a key; expected one");
  builder_.end_union();
}

void Reader::skip_value() {
  switch (peek()) {
    case '"':
      read_string(value_);
      return;
    case '{': {
      JsonKeys keys;
      return read_items('{', '}', kEntryBytes, [&] {
        read_new_key(keys);
        expect(':');
        skip_value();
      });
    }
    case '[':
      return read_items('[', ']', 0, [&] { skip_value(); });
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
  constexpr uintptr_t kParserLevel = 1 << 10;  // stack bytes per level; Python's parser uses fewer
  depth = std::min<uintptr_t>(depth, core::stack_space() / kParserLevel);
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
