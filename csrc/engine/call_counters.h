// Counters of dispatched calls, kept for each run.
//
// A dispatcher counts the calls of its module, and goes back to 0 after the last. Its count is in
// an attribute, where two threads would disturb one another; so a run reads the attribute once,
// counts on its own, and writes the attribute when it ends. Runs within a run, below hooks for
// example, share the counters of the outermost one of their thread.
#pragma once

#include <unordered_map>

#include "engine/symbols.h"

namespace fxpress::engine {

class CallCounters {
 public:
  // Begins a run in this thread.
  CallCounters();
  // Ends it; the outermost run writes the counters back. Errors there are ignored.
  ~CallCounters();
  CallCounters(const CallCounters&) = delete;
  CallCounters& operator=(const CallCounters&) = delete;

  // The innermost scope's counters of this thread; null outside of any run.
  static CallCounters* current();

  // The index of the dispatcher's next call; -1 when it has no proper counter. With the GIL.
  int64_t next(PyObject* dispatcher);
  // Sets the index of the next call; next() was called before. Needs no GIL.
  void set(PyObject* dispatcher, int64_t index);

 private:
  struct Counter {
    Ref dispatcher;
    int64_t stored;  // what the attribute says
    int64_t index;   // what this run says
  };

  std::unordered_map<PyObject*, Counter> counters_;  // of the outermost scope
  CallCounters* outer_;                              // the thread's outermost scope; null: this
};

// The attribute itself: -1 when it is no index.
int64_t stored_call(PyObject* dispatcher);
void store_call(PyObject* dispatcher, int64_t index);

}  // namespace fxpress::engine
