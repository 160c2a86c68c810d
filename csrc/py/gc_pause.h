// Cyclic garbage collection stands still, or is rare, while many objects are made.
#pragma once

#include <cstdint>
#include <map>
#include <thread>

#include "py/object.h"

namespace fxpress::cpython {

// Something that threads hold for a while: it is on from the first hold to the end of the last one.
// All members require the GIL. A greenlet that waits has its stack elsewhere, so holds are known by
// number, and not by address.
class Holds {
 public:
  int count() const { return static_cast<int>(threads_.size()); }
  // Adds a hold of this thread, and returns its number.
  uint64_t add();
  // Whether a hold was the last one; false when it was forgotten before.
  bool remove(uint64_t number) { return threads_.erase(number) != 0 && threads_.empty(); }
  // Drops the holds of other threads, which are gone in the child after a fork. Returns whether
  // there were any, and no hold is left.
  bool forget_other_threads();

 private:
  std::map<uint64_t, std::thread::id> threads_;  // by hold: where it began
  uint64_t next_ = 0;                            // number of the next hold
};

// Counted across threads: the collector runs again when the last pause ends; after ten seconds of
// pauses that overlap, with the end of any. It is paused by its thresholds, so that a gc.disable()
// or gc.enable() of other code meanwhile holds. Never held across the split callback, nor while
// files are read. Code of others that runs while objects are made runs under it: registration hooks
// of nn.Module, a replaced nn.Module.__init__, the copy() of a meta of another class; while a
// program is read also unpickling, where it is allowed, what is registered for pytrees, and torch's
// verifier.
//
// Each extension module counts for itself: those of _aten end before the GIL is given up.
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

// The collector waits for more young objects than usual, in all threads. Nearly all that a trace
// makes lives until the graph is done, so that a look at it is in vain; some of it is garbage, so
// that never to look is no way.
class RareCollections {
 public:
  RareCollections();
  ~RareCollections();
  RareCollections(const RareCollections&) = delete;
  RareCollections& operator=(const RareCollections&) = delete;

 private:
  uint64_t hold_;  // its number
};

// Ends the pauses of threads that the child does not have; called in the child after a fork.
void end_pauses_of_other_threads();

}  // namespace fxpress::cpython
