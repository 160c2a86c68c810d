// Cyclic garbage collection stands still, or is rare, while many objects are made.
#pragma once

#include <thread>

#include "py/object.h"

namespace fxpress::cpython {

// Something that threads hold for a while: it is on from the first hold to the end of the last one.
// With the GIL, as all of it.
struct Holds {
  class Hold* first = nullptr;  // of the list of those in force
  int count = 0;                // of the list

  // Drops the holds of other threads, which are gone in the child after a fork. Returns whether
  // there were any, and no hold is left.
  bool forget_other_threads();
};

class Hold {
 public:
  explicit Hold(Holds& holds);
  // Whether it was the last one.
  bool leave();
  Hold(const Hold&) = delete;
  Hold& operator=(const Hold&) = delete;

 private:
  friend struct Holds;

  Holds* holds_;  // whose list it is in; null: in none any more
  Hold* previous_ = nullptr;
  Hold* next_;
  std::thread::id thread_ = std::this_thread::get_id();  // where it began
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
  Hold hold_;
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
  Hold hold_;
};

// Ends the pauses of threads that the child does not have; called in the child after a fork.
void end_pauses_of_other_threads();

}  // namespace fxpress::cpython
