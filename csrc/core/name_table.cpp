#include "core/name_table.h"

#include <algorithm>
#include <charconv>

#include "core/characters.h"

namespace fxpress::core {

namespace {

constexpr size_t kMaxDigits = 18;   // numbers with more digits are encoded by the id of their text
constexpr int64_t kFirstLong = -2;  // kFirstLong - i encodes the number whose text has id i

bool is_legal(std::string_view text) {
  return !text.empty() && !is_digit(text.front()) &&
         std::all_of(text.begin(), text.end(), is_name_part);
}

// Returns `text` with one underscore in place of each run of characters that are illegal in names.
std::string legalize(std::string_view text) {
  std::string out;
  out.reserve(text.size() + 1);
  bool in_run = false;
  for (char c : text) {
    if (is_name_part(c)) {
      out.push_back(c);
    } else if (!in_run) {
      out.push_back('_');
    }
    in_run = !is_name_part(c);
  }
  if (out.empty()) out = "_unnamed";
  if (is_digit(out.front())) out.insert(out.begin(), '_');
  return out;
}

}  // namespace

void NameTable::reserve_ids() {
  if (parsed_.size() >= pool_.size()) return;
  const size_t n = pool_.size() + pool_.size() / 2 + 64;
  parsed_.resize(n);
  forbidden_.resize(n, 0);
  used_.resize(n, 0);
  counted_.resize(n, 0);
  changes_.resize(n, 0);
  counts_.resize(n, 0);
}

void NameTable::forbid(StringId name) {
  reserve_ids();
  forbidden_[name.value()] = 1;
}

void NameTable::begin_graph() {
  ++epoch_;
  forget_changes();
}

void NameTable::forget_changes() {
  ++round_;
  changed_.clear();
}

bool NameTable::is_used(StringId name) const {
  return name.value() < used_.size() && used_[name.value()] == epoch_;
}

NameTable::Parsed NameTable::parse(StringId raw) {
  reserve_ids();
  if (parsed_[raw.value()].candidate.valid()) return parsed_[raw.value()];
  Parsed result;
  result.candidate = raw;
  if (!is_legal(pool_.text(raw))) result.candidate = pool_.intern(legalize(pool_.text(raw)));
  const std::string_view text = pool_.text(result.candidate);
  size_t digits = 0;
  while (digits < text.size() && is_digit(text[text.size() - 1 - digits])) ++digits;
  const size_t base_size = text.size() - digits - 1;  // valid only if the digits follow "_"
  if (digits > 0 && digits + 1 < text.size() && text[base_size] == '_') {
    result.number = number(text.substr(base_size + 1));
    result.base = pool_.intern(text.substr(0, base_size));
  } else {
    result.base = result.candidate;
  }
  reserve_ids();
  return parsed_[raw.value()] = result;
}

void NameTable::define(StringId raw, StringId candidate, StringId base, int64_t number) {
  reserve_ids();
  parsed_[raw.value()] = {candidate, base, number};
}

int64_t NameTable::number(std::string_view digits) {
  digits.remove_prefix(std::min(digits.find_first_not_of('0'), digits.size()));
  if (digits.size() > kMaxDigits) return kFirstLong - int64_t{pool_.intern(digits).value()};
  int64_t result = 0;
  std::from_chars(digits.data(), digits.data() + digits.size(), result);
  return result;
}

std::string NameTable::digits(int64_t number) const {
  if (number >= 0) return std::to_string(number);
  return std::string(pool_.text(StringId(static_cast<uint32_t>(kFirstLong - number))));
}

int64_t NameTable::successor(int64_t number) {
  if (number >= 0) return number + 1;  // no overflow: at most 18 digits
  std::string next = digits(number);
  const size_t last = next.find_last_not_of('9');
  std::fill(
      last == std::string::npos ? next.begin() : next.begin() + static_cast<int64_t>(last) + 1,
      next.end(), '0');
  if (last == std::string::npos) {
    next.insert(next.begin(), '1');
  } else {
    ++next[last];
  }
  return this->number(next);
}

StringId NameTable::numbered(StringId base, int64_t number) {
  // Numbers beyond 32 bits are rare and are not cached.
  const bool small = number >= 0 && number < 0xffffffffll;
  const uint64_t key = (uint64_t{base.value()} << 32) | static_cast<uint32_t>(number);
  if (small) {
    if (const uint32_t known = numbered_.find(key); known != FlatMap::kAbsent) {
      return StringId(known);
    }
  }
  std::string text(pool_.text(base));
  text += '_';
  text += digits(number);
  const StringId id = pool_.intern(text);
  if (small) numbered_.insert(key, id.value());
  reserve_ids();
  return id;
}

StringId NameTable::create(StringId raw, bool exempt) {
  const Parsed parsed = parse(raw);
  StringId candidate = parsed.candidate;
  const size_t base = parsed.base.value();

  int64_t number = parsed.number;
  if (number == kNoNumber || is_used(candidate)) {
    number = counted_[base] == epoch_ ? counts_[base] : 0;
    if (!exempt && forbidden_[candidate.value()] != 0) {
      number = successor(number);
      candidate = numbered(parsed.base, number);
    }
  }
  while (is_used(candidate)) {
    number = successor(number);
    candidate = numbered(parsed.base, number);
  }

  used_[candidate.value()] = epoch_;
  counted_[base] = epoch_;
  counts_[base] = number;
  if (changes_[base] != round_) {
    changes_[base] = round_;
    changed_.push_back(parsed.base);
  }
  return candidate;
}

}  // namespace fxpress::core
