// Cyclic garbage collection stands still while a batch of objects is built.
#pragma once

namespace fxpress::fx {

// Counted across threads (under the GIL): the collector runs again when the last pause ends, and
// only if it ran when the first one began; after ten seconds of pauses that overlap, with the end
// of any. Never held across the split callback, nor while files are read. Code of others that runs
// while objects are made runs under it: registration hooks of nn.Module, a replaced
// nn.Module.__init__, the copy() of a meta of another class; while a program is read also
// unpickling, where it is allowed, what is registered for pytrees, and torch's verifier.
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
