// Cyclic garbage collection stands still while a batch of objects is built.
#pragma once

namespace fxpress::fx {

// Counted across threads (under the GIL): the collector runs again when the last pause ends, and
// only if it ran when the first one began. Never held across the split callback or the generation
// of code. Hooks that fire while an object is made (registration hooks of nn.Module, a replaced
// nn.Module.__init__, the copy() of a meta of another class) run under it.
class GcPause {
 public:
  GcPause();
  ~GcPause();
  GcPause(const GcPause&) = delete;
  GcPause& operator=(const GcPause&) = delete;
};

// Pauses in force; for tests.
int gc_pauses();

}  // namespace fxpress::fx
