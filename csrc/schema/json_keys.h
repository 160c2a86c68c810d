// The keys of a JSON object that were read, to notice one that comes twice.
#pragma once

#include <algorithm>
#include <array>
#include <forward_list>
#include <string>
#include <string_view>
#include <unordered_set>

namespace fxpress::schema {

class JsonKeys {
 public:
  // Whether a key is new. `lives`: its text outlives this object, else it is copied.
  bool add(std::string_view key, bool lives) {
    if (has(key)) return false;
    last_ = lives ? key : std::string_view(copies_.emplace_front(key));
    if (count_ < few_.size()) {
      few_[count_++] = last_;
    } else {
      if (many_.empty()) many_.insert(few_.begin(), few_.end());
      many_.insert(last_);
    }
    return true;
  }
  // The key that was added last, for as long as this object lives.
  std::string_view last() const { return last_; }

 private:
  bool has(std::string_view key) const {
    if (!many_.empty()) return many_.contains(key);
    const auto* end = few_.begin() + count_;
    return std::find(few_.begin(), end, key) != end;
  }

  std::array<std::string_view, 16> few_;       // the first ones: most objects have no more
  size_t count_ = 0;                           // of few_
  std::unordered_set<std::string_view> many_;  // all, once there are more
  std::forward_list<std::string> copies_;      // of keys that did not live long enough
  std::string_view last_;
};

}  // namespace fxpress::schema
