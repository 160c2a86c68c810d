// A hash table of positions in somebody else's array: four bytes a slot, keys are not stored.
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

namespace fxpress::core {

class PositionTable {
 public:
  static constexpr uint32_t kAbsent = 0xffffffffu;

  // Room for `expected` positions; more may not be inserted than half the slots there are then.
  explicit PositionTable(size_t expected = 0) {
    size_t capacity = 16;
    while (capacity < 2 * expected) capacity *= 2;
    slots_.assign(capacity, kAbsent);
  }

  bool full() const { return 2 * (size_ + 1) > slots_.size(); }
  size_t size() const { return size_; }

  // The position with this hash for which is_same(position) holds, or kAbsent.
  template <class F>
  uint32_t find(uint64_t hash, F&& is_same) const {
    return slots_[probe(hash, is_same)];
  }

  // Stores the position, unless there is one like it; returns what is stored. Not when full().
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
    hash ^= hash >> 32;
    hash *= 0x9e3779b97f4a7c15ull;
    size_t slot = (hash ^ (hash >> 29)) & mask;
    while (slots_[slot] != kAbsent && !is_same(slots_[slot])) slot = (slot + 1) & mask;
    return slot;
  }

  std::vector<uint32_t> slots_;  // positions; the number of slots is a power of two
  size_t size_ = 0;              // positions stored
};

}  // namespace fxpress::core
