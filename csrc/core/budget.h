// Limits the memory and the nesting depth while one file is read. Each load has one Budget, which
// threads do not share.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <stdexcept>
#include <string>
#include <utility>

namespace fxpress::core {

// Thrown when a limit is reached. what() names the part of the file that reached the limit, and
// `limit` the field of archive.Limits.
class LimitReached : public std::runtime_error {
 public:
  LimitReached(const char* reached, const std::string& place)
      : std::runtime_error(place), limit(reached) {}

  const char* limit;
};

// The lowest address of this thread's stack; 0 until find_stack_end() has run. constinit avoids the
// function call with which each read checks for a dynamic initializer.
extern constinit thread_local uintptr_t stack_end;
uintptr_t find_stack_end();

// Stack space reserved for the functions that the innermost level calls to create tensors and
// expressions in Python.
inline constexpr uintptr_t kStackReserve = 96 << 10;  // bytes

// Returns the bytes of this thread's stack that a recursion may use.
inline uintptr_t stack_space() {
  const char here = 0;
  const auto now = reinterpret_cast<uintptr_t>(&here);
  const uintptr_t end = stack_end != 0 ? stack_end : find_stack_end();
  if (now < end) return UINTPTR_MAX;  // the thread runs on another stack, of unknown size
  return now - end > kStackReserve ? now - end - kStackReserve : 0;
}

// Whether the stack has space for one more level of a recursion and for kStackReserve.
inline bool stack_has_space() {
  return stack_space() != 0;
}

// Throws LimitReached for `place` when the stack has no space for one more level.
inline void check_stack(const char* place) {
  if (!stack_has_space()) throw LimitReached("depth", place);
}

class Budget {
 public:
  Budget(uint64_t memory, size_t depth) : memory_(memory), depth_(depth) {}

  // Charges an estimate of the bytes that the caller is about to allocate.
  void charge(uint64_t bytes) {
    if (bytes > memory_ - used_) reach_memory();
    used_ += bytes;
  }
  // Charges `count` objects of `each` bytes.
  void charge(uint64_t count, uint64_t each) {
    if (count != 0 && each > (memory_ - used_) / count) reach_memory();
    used_ += count * each;
  }
  // Raises the memory limit by `bytes`, for a file that proves larger than expected.
  void grow(uint64_t bytes) { memory_ += std::min(bytes, UINT64_MAX / 2 - memory_); }
  uint64_t used() const { return used_; }
  size_t depth() const { return depth_; }

  // Counts one level of nesting during its lifetime.
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

  // Sets the part of the file that errors name as the place of the fault.
  void set_place(std::string place) { place_ = std::move(place); }

 private:
  // Out of line, so that its callers stay small enough to be inlined.
  [[noreturn]] void reach_memory() const;

  uint64_t memory_;  // bytes
  uint64_t used_ = 0;
  size_t depth_;
  size_t levels_ = 0;
  std::string place_ = "the program";
};

}  // namespace fxpress::core
