// Pauses cyclic garbage collection, or makes it rare, while many objects are created.
#pragma once

#include <cstdint>
#include <map>
#include <thread>

#include "py/object.h"

namespace fxpress::cpython {

// Counts the holds of a state that all threads share. The state is on while there is at least one
// hold. All members require the GIL. Numbers identify the holds, because greenlets move their
// stacks and so change addresses.
class Holds {
 public:
  int count() const { return static_cast<int>(threads_.size()); }
  // Adds a hold of this thread, and returns its number.
  uint64_t add();
  // Removes a hold. Returns whether it was the last hold; false when it was forgotten before.
  bool remove(uint64_t number) { return threads_.erase(number) != 0 && threads_.empty(); }
  // Drops the holds of other threads, which do not exist in the child after a fork. Returns whether
  // it has dropped holds and no hold is left.
  bool forget_other_threads();

 private:
  std::map<uint64_t, std::thread::id> threads_;  // number of a hold -> its thread
  uint64_t next_ = 0;                            // number of the next hold
};

// Pauses the collector in all threads. It resumes when the last pause ends, or, after ten seconds
// of overlapping pauses, when any pause ends. A pause sets the collector's thresholds, so that
// gc.disable() and gc.enable() of other code keep their effect. No pause is held during the split
// callback or while files are read. These functions of users may run during a pause: registration
// hooks of nn.Module, a replaced nn.Module.__init__, and copy() of a meta that is not a dict. While
// a program is read, these run too: unpickling, where it is allowed, functions that are registered
// for pytrees, and torch's verifier.
//
// The extension modules _native and _aten each count their pauses. Pauses in _aten end before the
// GIL is released.
class GcPause {
 public:
  GcPause();
  ~GcPause();
  GcPause(const GcPause&) = delete;
  GcPause& operator=(const GcPause&) = delete;

 private:
  uint64_t hold_;  // its number
};

// Returns the number of pauses in force; for tests.
int gc_pauses();

// Raises the collector's first threshold in all threads. Most collections during a trace would free
// nothing, because nearly all objects that it creates are live until the graph is done. But a few
// become garbage before, and a GcPause would keep them: so collections are made rare, not stopped.
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
