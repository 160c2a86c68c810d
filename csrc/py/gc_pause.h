// Pauses cyclic garbage collection, or makes it rare, while many objects are created.
#pragma once

#include <cstdint>
#include <map>
#include <thread>

#include "py/object.h"

namespace fxpress::cpython {

// Counts holds of threads: the state that they hold is on from the first hold to the end of the
// last. All members require the GIL. Holds are identified by number, not by address, because
// greenlets move their stacks.
class Holds {
 public:
  int count() const { return static_cast<int>(threads_.size()); }
  // Adds a hold of this thread, and returns its number.
  uint64_t add();
  // Removes a hold. Returns whether it was the last one; false when it was forgotten before.
  bool remove(uint64_t number) { return threads_.erase(number) != 0 && threads_.empty(); }
  // Drops the holds of other threads, which do not exist in the child after a fork. Returns whether
  // there were any and no hold is left.
  bool forget_other_threads();

 private:
  std::map<uint64_t, std::thread::id> threads_;  // number of a hold -> its thread
  uint64_t next_ = 0;                            // number of the next hold
};

// Pauses the collector in all threads. It resumes when the last pause ends, or, after ten seconds
// of overlapping pauses, when any pause ends. The pause sets the collector's thresholds, so that
// gc.disable() and gc.enable() of other code keep their effect. It is not held across the split
// callback, nor while files are read. Foreign code that runs while objects are created runs under
// it: registration hooks of nn.Module, a replaced nn.Module.__init__, the copy() of a meta of
// another class; while a program is read also unpickling, where it is allowed, functions that are
// registered for pytrees, and torch's verifier.
//
// Each extension module has its own count. The pauses of _aten end before the GIL is released.
class GcPause {
 public:
  GcPause();
  ~GcPause();
  GcPause(const GcPause&) = delete;
  GcPause& operator=(const GcPause&) = delete;

 private:
  uint64_t hold_;  // its number
};

// The number of pauses in force; for tests.
int gc_pauses();

// Raises the collector's first threshold in all threads. Nearly all objects that a trace creates
// are live until the graph is done, so that most collections would free nothing; some objects are
// garbage, so that a pause would not do.
class RareCollections {
 public:
  RareCollections();
  ~RareCollections();
  RareCollections(const RareCollections&) = delete;
  RareCollections& operator=(const RareCollections&) = delete;

 private:
  uint64_t hold_;  // its number
};

// Ends the pauses of threads that do not exist in a forked child; called in the child.
void end_pauses_of_other_threads();

}  // namespace fxpress::cpython
