// The budget of reading one file. One object carries it through a load; no thread shares it.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <stdexcept>
#include <string>
#include <utility>

namespace fxpress::core {

// A limit was reached: what() names the place. `limit` is a field of fxpress.archive.Limits.
class LimitReached : public std::runtime_error {
 public:
  LimitReached(const char* reached, const std::string& place)
      : std::runtime_error(place), limit(reached) {}

  const char* limit;
};

// Where the stack of this thread ends, once it was looked for; 0 before. The initializer is a
// constant: a variable of a thread that must be initialized is read through a call.
extern constinit thread_local uintptr_t stack_end;
uintptr_t find_stack_end();

// The stack that is reserved for the calls of the last level, which make tensors and expressions in
// Python.
inline constexpr uintptr_t kStackReserve = 96 << 10;  // bytes

// The bytes of this thread's stack that a recursion may use.
inline uintptr_t stack_space() {
  const char here = 0;
  const auto now = reinterpret_cast<uintptr_t>(&here);
  const uintptr_t end = stack_end != 0 ? stack_end : find_stack_end();
  if (now < end) return UINTPTR_MAX;  // the thread runs on another stack, of unknown size
  return now - end > kStackReserve ? now - end - kStackReserve : 0;
}

// Whether the stack has space for one more level of a recursion, and for what the last level calls.
inline bool stack_has_space() {
  return stack_space() != 0;
}

// Throws LimitReached for `place` when it has not.
inline void check_stack(const char* place) {
  if (!stack_has_space()) throw LimitReached("depth", place);
}

class Budget {
 public:
  Budget(uint64_t memory, size_t depth) : memory_(memory), depth_(depth) {}

  // Charges bytes that are about to be allocated, as an estimate.
  void charge(uint64_t bytes) {
    if (bytes > memory_ - used_) reach_memory();
    used_ += bytes;
  }
  // Charges so many things of a size.
  void charge(uint64_t count, uint64_t each) {
    if (count != 0 && each > (memory_ - used_) / count) reach_memory();
    used_ += count * each;
  }
  // The file is larger than it was known to be: so many bytes more may be charged.
  void grow(uint64_t bytes) { memory_ += std::min(bytes, UINT64_MAX / 2 - memory_); }
  uint64_t used() const { return used_; }
  size_t depth() const { return depth_; }

  // The load is one level deeper as long as this object lives.
  class Level {
   public:
    Level(Budget& budget, const char* place) : budget_(budget) {
      if (budget.levels_ >= budget.depth_) throw LimitReached("depth", place);
      check_stack(place);
      ++budget.levels_;
    }
    ~Level() { --budget_.levels_; }
    Level(const Level&) = delete;
    Level& operator=(const Level&) = delete;

   private:
    Budget& budget_;
  };

  // Sets the place in the load that errors name.
  void set_place(std::string place) { place_ = std::move(place); }

 private:
  // Apart from its callers, which are small enough to be inlined.
  [[noreturn]] void reach_memory() const;

  uint64_t memory_;  // bytes
  uint64_t used_ = 0;
  size_t depth_;
  size_t levels_ = 0;
  std::string place_ = "the program";
};

}  // namespace fxpress::core
