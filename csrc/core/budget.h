// Limits the memory and the nesting depth of reading one file. Each load has its own Budget, which
// only one thread uses.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <stdexcept>
#include <string>
#include <utility>

namespace fxpress::core {

// Thrown when reading would exceed a limit. what() names the part of the file that exceeds it.
// `limit` is the name of a field of archive.Limits.
class LimitReached : public std::runtime_error {
 public:
  LimitReached(const char* reached, const std::string& place)
      : std::runtime_error(place), limit(reached) {}

  const char* limit;
};

// The lowest address of this thread's stack; 0 until find_stack_end() has run. Without constinit,
// the compiler would add a check for a dynamic initializer to each read.
extern constinit thread_local uintptr_t stack_end;
uintptr_t find_stack_end();

// Stack bytes that a recursion must leave free for the Python functions that its innermost level
// calls to create tensors and expressions.
inline constexpr uintptr_t kStackReserve = 96 << 10;

// Returns how many bytes of this thread's stack a recursion may still use.
inline uintptr_t stack_space() {
  const char here = 0;
  const auto now = reinterpret_cast<uintptr_t>(&here);
  const uintptr_t end = stack_end != 0 ? stack_end : find_stack_end();
  if (now < end) return UINTPTR_MAX;  // a stack of unknown size, for example of a greenlet
  return now - end > kStackReserve ? now - end - kStackReserve : 0;
}

// Returns whether the stack has more than kStackReserve free bytes.
inline bool stack_has_space() {
  return stack_space() != 0;
}

// Throws LimitReached unless stack_has_space(). place: the part of the file that is being read.
inline void check_stack(const char* place) {
  if (!stack_has_space()) throw LimitReached("depth", place);
}

class Budget {
 public:
  Budget(uint64_t memory, size_t depth) : memory_(memory), depth_(depth) {}

  // Counts `bytes`, which the caller is about to allocate. Throws LimitReached beyond the limit.
  void charge(uint64_t bytes) {
    if (bytes > memory_ - used_) reach_memory();
    used_ += bytes;
  }
  // Adds `count` objects of `each` bytes, like charge(count * each), but without overflow.
  void charge(uint64_t count, uint64_t each) {
    if (count != 0 && each > (memory_ - used_) / count) reach_memory();
    used_ += count * each;
  }
  // Raises the memory limit by `bytes`. Callers do this when they read more input.
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

  // Sets the part of the file that LimitReached names beyond the memory limit.
  void set_place(std::string place) { place_ = std::move(place); }

 private:
  // Not inline, so that the functions that call it are small enough for inlining.
  [[noreturn]] void reach_memory() const;

  uint64_t memory_;  // the limit in bytes
  uint64_t used_ = 0;
  size_t depth_;
  size_t levels_ = 0;
  std::string place_ = "the program";
};

}  // namespace fxpress::core
