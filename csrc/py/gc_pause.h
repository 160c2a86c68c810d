// Pauses cyclic garbage collection, or makes it rare, while many objects are created.
#pragma once

#include <cstdint>
#include <map>
#include <thread>

#include "py/object.h"

namespace fxpress::cpython {

// Counts the holds of one mode of the collector: paused, or with rare collections. The mode applies
// to all threads while any thread has a hold. All members require the GIL. A number identifies a
// hold. An address cannot, because greenlets move their stacks.
class Holds {
 public:
  int count() const { return static_cast<int>(threads_.size()); }
  // Adds a hold of this thread, and returns its number.
  uint64_t add();
  // Removes a hold, if it exists. Returns whether it was the last one.
  bool remove(uint64_t number) { return threads_.erase(number) != 0 && threads_.empty(); }
  // Removes the holds of other threads, which do not exist in a forked child. Returns true if it
  // has removed holds and none is left.
  bool forget_other_threads();

 private:
  std::map<uint64_t, std::thread::id> threads_;  // from the number of a hold to its thread
  uint64_t next_ = 0;                            // number of the next hold
};

// Pauses the collector in all threads. The collector resumes when the last pause ends. After ten
// seconds of overlapping pauses, it resumes when any pause ends. A pause sets the collector's
// thresholds, so that gc.disable() and gc.enable() keep their effect. The split callback and reads
// of files never run during a pause. This user code may run: registration hooks of nn.Module, a
// replaced nn.Module.__init__, and copy() of a meta that is not a dict. When a program is loaded,
// torch's verifier, functions registered for pytrees and allowed unpickling may run too.
//
// Each of the extension modules _native and _aten counts its own pauses. Pauses in _aten end before
// the GIL is released.
class GcPause {
 public:
  GcPause();
  ~GcPause();
  GcPause(const GcPause&) = delete;
  GcPause& operator=(const GcPause&) = delete;

 private:
  uint64_t hold_;  // number of this hold
};

// Returns the number of active pauses, for tests.
int gc_pauses();

// Makes collections rare in all threads, by raising the collector's first threshold. Most
// collections during a trace would free nothing, because nearly all new objects are live until the
// graph is done. A GcPause would free none of the few objects that become garbage.
class RareCollections {
 public:
  RareCollections();
  ~RareCollections();
  RareCollections(const RareCollections&) = delete;
  RareCollections& operator=(const RareCollections&) = delete;

 private:
  uint64_t hold_;  // number of this hold
};

// Ends the pauses of the parent's other threads. Must be called in a forked child.
void end_pauses_of_other_threads();

}  // namespace fxpress::cpython
