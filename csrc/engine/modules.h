// Handles the modules of a plan: versions of dicts, counters of dispatched calls, and checks that a
// module is unchanged and may be inlined. All functions except CallCounters::set() require the GIL.
#pragma once

#include <cstdint>
#include <memory>
#include <unordered_map>

#include "engine/plan.h"

namespace fxpress::engine {

// Starts to count versions of dicts, by which a plan detects that a dict has changed; called once.
void watch_dicts();

// The number of changes of all watched dicts; 0: dicts are not watched. From Python 3.12 on this
// number is the version of every watched dict.
uint64_t dict_changes();

// Returns the version of a dict. 0: the dict has no version, and its content must not be cached.
// Two dicts may have the same version, so caches must also record the dict.
uint64_t dict_version(PyObject* dict);

// Whether a dict is unchanged since it had the version. When dicts are watched, `dict` may be a
// freed dict.
bool is_version(PyObject* dict, uint64_t version);

// Invalidates all values cached from dicts. Called if an object has another `__dict__` than before,
// which is not a change of a watched dict.
void forget_dicts();

// Counters of dispatched calls, kept for each run.
//
// A dispatcher counts the calls of its module, and returns to 0 after the last. The count is an
// attribute of the dispatcher, which threads would overwrite for each other. So a run reads this
// attribute once, counts separately, and writes the attribute when the run ends. Overlapping runs
// of one thread, in hooks or in several greenlets, share their counters.
class CallCounters {
 public:
  struct End {
    void operator()(CallCounters* counters) const { counters->end(); }
  };
  using OfRun = std::unique_ptr<CallCounters, End>;

  // Begins a run in this thread. When the last run ends, the counters are written back; errors are
  // ignored.
  static OfRun begin();
  // The counters of this thread; null outside runs.
  static CallCounters* current();

  // The index of the dispatcher's next call; -1 if its counter is not an int.
  int64_t next(PyObject* dispatcher);
  // Sets the index of the next call; next() must have been called before. Does not need the GIL.
  void set(PyObject* dispatcher, int64_t index);

 private:
  struct Counter {
    Ref dispatcher;
    int64_t stored;  // the attribute's value
    int64_t index;   // index of the next call in the current runs
  };

  void end();
  void write_back();

  std::unordered_map<PyObject*, Counter> counters_;  // by dispatcher
  size_t runs_ = 0;                                  // number of runs that use the counters
};

// The counter in the dispatcher's attribute; -1 if it is not an int.
int64_t stored_call(PyObject* dispatcher);
void store_call(PyObject* dispatcher, int64_t index);

// The functions below run no Python code.

// Registers how modules behave whose class has `function` as its forward().
void register_forward(PyObject* function, Forward kind);

// Returns what register_forward() has registered for the forward() of a class.
Forward forward_of(PyTypeObject* type);

// The version of a class, which changes with the class and its bases. Assigns a version if the
// class has none.
unsigned int current_version(PyTypeObject* type);

// Updates the cached members of a ModuleRef.
void refresh(ModuleRef& ref);

// The dict of a module's children, if getattr() searches it for `name`; null if getattr() finds
// `name` elsewhere. The cache of `ref` must be up to date.
PyObject* plain_children(const ModuleRef& ref, PyObject* name);

// Whether a module's path from the root still leads to it; if so, refreshes its ModuleRef.
bool in_place(Plan& plan, uint32_t index);

// Whether a call of this module only calls its `forward`.
bool calls_forward(ModuleRef& ref);

// Whether nodes `begin` to `end` have the links and the fields that the plan recorded.
bool same_nodes(const Plan& plan, PyObject* root, uint32_t begin, uint32_t end);

// The root node of a graph, borrowed; null when it has none.
PyObject* graph_root(PyObject* graph);

// Returns a module's attribute as nn.Module finds it, borrowed; null if only Python can find it.
PyObject* plain_attribute(Plan& plan, Load& load);

// By dispatcher: the index of the next call after the calls that look_ahead() has checked.
using CallsAhead = std::unordered_map<PyObject*, int64_t>;

// Whether the callee may run inline at this point of the run. Sets plan.stale if the plan must be
// rebuilt.
bool may_enter(Plan& plan, Enter& enter, CallCounters& scope, CallsAhead& ahead);

}  // namespace fxpress::engine
