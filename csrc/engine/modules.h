// Checks that the modules of a plan are unchanged, and whether they may be inlined. All functions
// are called with the GIL held and run no Python code.
#pragma once

#include "engine/call_counters.h"
#include "engine/plan.h"

namespace fxpress::engine {

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
