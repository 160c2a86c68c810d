// Checks whether the modules of a plan are unchanged and may be inlined. Provides versions of dicts
// and counters of dispatched calls. All functions except CallCounters::set() require the GIL.
#pragma once

#include <cstdint>
#include <memory>
#include <unordered_map>

#include "engine/plan.h"

namespace fxpress::engine {

// Starts to count changes of dicts, so that plans detect changed dicts. Must be called once.
void watch_dicts();

// Returns the number of changes of all watched dicts; 0 if dicts are not watched. From Python 3.12
// on, each watched dict has this number as its version.
uint64_t dict_changes();

// Returns the version of a dict; 0 if its content must not be cached. Different dicts may have the
// same version, so that a cache must also record the dict.
uint64_t dict_version(PyObject* dict);

// Returns whether a dict has the version `version`, and so is unchanged. If dicts are watched,
// `dict` is not read, so it may be freed already.
bool is_version(PyObject* dict, uint64_t version);

// Invalidates all values that were cached from dicts. Must be called if an object gets another
// `__dict__`, which does not change a watched dict.
void forget_dicts();

// Counts the calls of InterpreterModuleDispatchers.
//
// Each call of a dispatcher runs the next module in `_call_modules`; after the last, the first.
// The dispatcher counts calls in an attribute, which concurrent threads would overwrite. A run
// therefore reads the attribute once, counts in this object, and writes the attribute at its end.
// Overlapping runs of one thread, in hooks or in several greenlets, share one object.
class CallCounters {
 public:
  struct End {
    void operator()(CallCounters* counters) const { counters->end(); }
  };
  using OfRun = std::unique_ptr<CallCounters, End>;

  // Begins a run in this thread. When no run of the thread is active any more, writes the counts
  // to the dispatchers' attributes. Ignores errors of these writes.
  static OfRun begin();
  // Returns the counters of this thread; null if no run is active.
  static CallCounters* current();

  // Returns the index of the dispatcher's next call; -1 if its counter is not an int.
  int64_t next(PyObject* dispatcher);
  // Sets the index of the next call. Requires an earlier call of next(), but not the GIL.
  void set(PyObject* dispatcher, int64_t index);

 private:
  struct Counter {
    Ref dispatcher;
    int64_t stored;  // value of the dispatcher's attribute
    int64_t index;   // index of the next call in the active runs
  };

  void end();
  void write_back();

  std::unordered_map<PyObject*, Counter> counters_;  // by dispatcher
  size_t runs_ = 0;                                  // number of active runs in this thread
};

// Returns the count in the dispatcher's attribute; -1 if it is not an int.
int64_t stored_call(PyObject* dispatcher);
void store_call(PyObject* dispatcher, int64_t index);

// The functions below run no Python code.

// Registers the behavior of the classes whose forward() is `function`.
void register_forward(PyObject* function, Forward kind);

// Returns how register_forward() has registered the forward() of a class.
Forward forward_of(PyTypeObject* type);

// Returns the version of a class, which changes if the class or a base changes. Assigns a version
// if the class has none.
unsigned int current_version(PyTypeObject* type);

// Updates the cached members of `ref`.
void refresh(ModuleRef& ref);

// Returns the dict of a module's children if getattr() would search it for `name`. Returns null if
// getattr() finds `name` elsewhere. Requires an up-to-date `ref`.
PyObject* plain_children(const ModuleRef& ref, PyObject* name);

// Returns whether a module is still at its path. If so, calls refresh(). If not, sets plan.stale.
bool in_place(Plan& plan, uint32_t index);

// Returns whether a call of this module only calls its forward().
bool calls_forward(ModuleRef& ref);

// Returns whether the nodes from `begin` to `end` still have their recorded links and fields.
bool same_nodes(const Plan& plan, PyObject* root, uint32_t begin, uint32_t end);

// Returns the root node of a graph, borrowed; null if the graph has none.
PyObject* graph_root(PyObject* graph);

// Returns an attribute as nn.Module finds it, borrowed; null if only Python can find it.
PyObject* plain_attribute(Plan& plan, Load& load);

// Dispatcher -> the index of its next call after all calls that look_ahead() has checked.
using CallsAhead = std::unordered_map<PyObject*, int64_t>;

// Returns whether the run may execute the inlined callee now, instead of calling it in Python. Sets
// plan.stale if the plan must be rebuilt.
bool may_enter(Plan& plan, Enter& enter, CallCounters& scope, CallsAhead& ahead);

}  // namespace fxpress::engine
