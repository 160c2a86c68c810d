// Open-addressing map from 64-bit keys to 32-bit values: no erase, linear probing, half full.
#pragma once

#include <cstddef>
#include <cstdint>
#include <utility>
#include <vector>

namespace fxpress::core {

class FlatMap {
 public:
  static constexpr uint32_t kAbsent = 0xffffffffu;

  explicit FlatMap(size_t expected = 0) { rehash(expected); }

  FlatMap(FlatMap&&) = default;
  FlatMap& operator=(FlatMap&&) = default;

  size_t size() const { return size_; }

  // The value of `key`, or kAbsent.
  uint32_t find(uint64_t key) const {
    for (size_t slot = hash(key) & mask_;; slot = (slot + 1) & mask_) {
      if (values_[slot] == kAbsent) return kAbsent;
      if (keys_[slot] == key) return values_[slot];
    }
  }

  // Stores `value`, anything but kAbsent, unless `key` is present; returns what is stored, and
  // whether it was added.
  struct Inserted {
    uint32_t value;  // the value stored under the key after the call
    bool added;      // false when the key was there before
  };
  Inserted insert(uint64_t key, uint32_t value) {
    if (2 * (size_ + 1) > values_.size()) rehash(2 * size_ + 8);
    size_t slot = hash(key) & mask_;
    while (values_[slot] != kAbsent) {
      if (keys_[slot] == key) return {values_[slot], false};
      slot = (slot + 1) & mask_;
    }
    keys_[slot] = key;
    values_[slot] = value;
    ++size_;
    return {value, true};
  }

  // Stores `value`, anything but kAbsent, whether or not `key` is present.
  void assign(uint64_t key, uint32_t value) {
    if (insert(key, value).added) return;
    size_t slot = hash(key) & mask_;
    while (keys_[slot] != key || values_[slot] == kAbsent) slot = (slot + 1) & mask_;
    values_[slot] = value;
  }

 private:
  static uint64_t hash(uint64_t key) {
    key ^= key >> 32;
    key *= 0x9e3779b97f4a7c15ull;
    return key ^ (key >> 29);
  }

  void rehash(size_t expected) {
    size_t capacity = 16;
    while (capacity < 2 * expected) capacity *= 2;
    std::vector<uint64_t> old_keys = std::move(keys_);
    std::vector<uint32_t> old_values = std::move(values_);
    keys_.assign(capacity, 0);
    values_.assign(capacity, kAbsent);
    mask_ = capacity - 1;
    size_ = 0;
    for (size_t i = 0; i < old_values.size(); ++i) {
      if (old_values[i] != kAbsent) insert(old_keys[i], old_values[i]);
    }
  }

  std::vector<uint64_t> keys_;    // valid where values_ is not kAbsent
  std::vector<uint32_t> values_;  // kAbsent marks a free slot
  size_t mask_ = 0;               // capacity - 1, capacity is a power of two
  size_t size_ = 0;               // keys stored
};

}  // namespace fxpress::core
