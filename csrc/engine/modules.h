// The modules of a plan: versions of dicts, counters of dispatched calls, and checks that a module
// is unchanged and may be inlined. All functions but CallCounters::set() require the GIL.
#pragma once

#include <cstdint>
#include <memory>
#include <unordered_map>

#include "engine/plan.h"

namespace fxpress::engine {

// Prepares the versions of dicts, by which a plan knows that nothing has changed in them; called
// once.
void watch_dicts();

// The changes of dicts that have a version, counted; 0: Python does not tell. From Python 3.12 on
// this number is the version of all of them.
uint64_t dict_changes();

// The version of a dict; 0: it has none, and nothing may be remembered of it. Two dicts may have
// the same: remember which one it was.
uint64_t dict_version(PyObject* dict);

// Whether a dict is as it was when it had the version. Where dict_changes() counts, the dict may
// have died since.
bool is_version(PyObject* dict, uint64_t version);

// Says that what was found in dicts is to be found again: an object has got another dict, which no
// dict tells.
void forget_dicts();

// Counters of dispatched calls, kept for each run.
//
// A dispatcher counts the calls of its module, and goes back to 0 after the last. Its count is in
// an attribute, where two threads would disturb one another; so a run reads the attribute once,
// counts on its own, and writes the attribute when it ends. Runs of one thread that overlap, below
// hooks or in several greenlets, share their counters.
class CallCounters {
 public:
  struct End {
    void operator()(CallCounters* counters) const { counters->end(); }
  };
  using OfRun = std::unique_ptr<CallCounters, End>;

  // Begins a run in this thread. The last run that ends writes the counters back; errors there are
  // ignored.
  static OfRun begin();
  // The counters of this thread; null outside of any run.
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

  void end();
  void write_back();

  std::unordered_map<PyObject*, Counter> counters_;  // by dispatcher
  size_t runs_ = 0;                                  // that use them
};

// The attribute itself: -1 when it is no index.
int64_t stored_call(PyObject* dispatcher);
void store_call(PyObject* dispatcher, int64_t index);

// The functions below run no Python code.

// Says how the modules behave whose `forward` is the function.
void register_forward(PyObject* function, Forward kind);

// How the class's forward was registered.
Forward forward_of(PyTypeObject* type);

// The version of a class, given one if it has none: it changes with the class and its bases.
unsigned int current_version(PyTypeObject* type);

// Brings the cached half of a ModuleRef up to date.
void refresh(ModuleRef& ref);

// The dict of a module's children that `getattr` would look `name` up in; null when something else
// would answer. The module's cache is up to date.
PyObject* plain_children(const ModuleRef& ref, PyObject* name);

// Whether the way from the root still leads to this module. Brings it up to date, too.
bool in_place(Plan& plan, uint32_t index);

// Whether a call of this module does nothing but its `forward`.
bool calls_forward(ModuleRef& ref);

// Whether the nodes are linked as they were and have the fields that they had.
bool same_nodes(const Plan& plan, PyObject* root, uint32_t begin, uint32_t end);

// The root node of a graph, borrowed; null when it has none.
PyObject* graph_root(PyObject* graph);

// A module's attribute, if it is found as nn.Module finds it: borrowed. Null: ask Python.
PyObject* plain_attribute(Plan& plan, Load& load);

// How many calls of dispatchers lie ahead in the stretch that is looked at, by dispatcher.
using CallsAhead = std::unordered_map<PyObject*, int64_t>;

// Whether the callee may be run inline: now, at this place of the plan. Sets plan.stale when the
// plan should be made anew.
bool may_enter(Plan& plan, Enter& enter, CallCounters& scope, CallsAhead& ahead);

}  // namespace fxpress::engine
