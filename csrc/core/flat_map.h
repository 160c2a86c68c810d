// Defines hash tables with linear probing. They are at most half full. Entries cannot be erased.
#pragma once

#include <cstddef>
#include <cstdint>
#include <utility>
#include <vector>

namespace fxpress::core {

// Spreads the differences between keys over all bits.
inline uint64_t mix_bits(uint64_t key) {
  key ^= key >> 32;
  key *= 0x9e3779b97f4a7c15ull;
  return key ^ (key >> 29);
}

// Maps 64-bit keys to 32-bit values.
class FlatMap {
 public:
  static constexpr uint32_t kAbsent = 0xffffffffu;

  explicit FlatMap(size_t expected = 0) { rehash(expected); }

  FlatMap(FlatMap&&) = default;
  FlatMap& operator=(FlatMap&&) = default;

  size_t size() const { return size_; }

  // Returns the value of `key`, or kAbsent.
  uint32_t find(uint64_t key) const {
    for (size_t slot = mix_bits(key) & mask_;; slot = (slot + 1) & mask_) {
      if (slots_[slot].value == kAbsent) return kAbsent;
      if (slots_[slot].key == key) return slots_[slot].value;
    }
  }

  // insert(key, value) stores `value` if `key` is absent. `value` must not be kAbsent.
  struct Inserted {
    uint32_t value;  // the value of the key after insert()
    bool added;      // whether insert() has added the key
  };
  Inserted insert(uint64_t key, uint32_t value) {
    if (2 * (size_ + 1) > slots_.size()) rehash(2 * size_ + 8);
    size_t slot = mix_bits(key) & mask_;
    while (slots_[slot].value != kAbsent) {
      if (slots_[slot].key == key) return {slots_[slot].value, false};
      slot = (slot + 1) & mask_;
    }
    slots_[slot] = {key, value};
    ++size_;
    return {value, true};
  }

  // Sets the value of `key`, which may be present or absent. `value` must not be kAbsent.
  void assign(uint64_t key, uint32_t value) {
    if (insert(key, value).added) return;
    size_t slot = mix_bits(key) & mask_;
    while (slots_[slot].key != key || slots_[slot].value == kAbsent) slot = (slot + 1) & mask_;
    slots_[slot].value = value;
  }

 private:
  struct Slot {
    uint64_t key = 0;          // undefined if the slot is free
    uint32_t value = kAbsent;  // kAbsent if the slot is free
  };

  void rehash(size_t expected) {
    size_t capacity = 16;
    while (capacity < 2 * expected) capacity *= 2;
    const std::vector<Slot> old = std::exchange(slots_, std::vector<Slot>(capacity));
    mask_ = capacity - 1;
    size_ = 0;
    for (const Slot& slot : old) {
      if (slot.value != kAbsent) insert(slot.key, slot.value);
    }
  }

  std::vector<Slot> slots_;  // key and value are adjacent, so find() reads one cache line
  size_t mask_ = 0;          // number of slots, a power of two, minus 1
  size_t size_ = 0;          // number of keys
};

// A set of elements that are in an array of the caller. The set stores only their positions.
class PositionTable {
 public:
  static constexpr uint32_t kAbsent = 0xffffffffu;

  // Creates a table for up to `expected` positions. The table does not grow.
  explicit PositionTable(size_t expected = 0) {
    size_t capacity = 16;
    while (capacity < 2 * expected) capacity *= 2;
    slots_.assign(capacity, kAbsent);
  }

  bool full() const { return 2 * (size_ + 1) > slots_.size(); }
  size_t size() const { return size_; }

  // Returns the position for which is_same(position) is true, or kAbsent. hash: the element's hash.
  template <class F>
  uint32_t find(uint64_t hash, F&& is_same) const {
    return slots_[probe(hash, is_same)];
  }

  // Like find(), but stores and returns `position` if the element is absent. Requires !full().
  template <class F>
  uint32_t insert(uint64_t hash, uint32_t position, F&& is_same) {
    uint32_t& slot = slots_[probe(hash, is_same)];
    if (slot != kAbsent) return slot;
    ++size_;
    return slot = position;
  }

 private:
  template <class F>
  size_t probe(uint64_t hash, F&& is_same) const {
    const size_t mask = slots_.size() - 1;
    size_t slot = mix_bits(hash) & mask;
    while (slots_[slot] != kAbsent && !is_same(slots_[slot])) slot = (slot + 1) & mask;
    return slot;
  }

  std::vector<uint32_t> slots_;  // positions; the number of slots is a power of two
  size_t size_ = 0;              // number of stored positions
};

}  // namespace fxpress::core
