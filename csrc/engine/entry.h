// Declares the functions of the engine that Python calls.
#pragma once

#include <pybind11/pybind11.h>

#include <cstdint>

#include "engine/symbols.h"

namespace fxpress::engine {

// run(module, graph, args) returns the graph's output. Uses METH_FASTCALL, because the overhead of
// a call matters for small graphs. If `args` is a list, it is emptied.
PyObject* run(PyObject* self, PyObject* const* args, Py_ssize_t count);

// Returns statistics of the graph's plan as a dict; None if the graph has no plan.
pybind11::object plan_info(const pybind11::object& graph);

// Returns the index in `_call_modules` of the module that the next call of an
// InterpreterModuleDispatcher runs; -1 if the dispatcher's counter is not an int.
int64_t next_call(const pybind11::object& dispatcher);
void set_next_call(const pybind11::object& dispatcher, int64_t index);

// Adds the Python type of plan objects to the extension module. A plan object owns a plan, and is
// in the `__dict__` of the plan's graph. The garbage collector therefore sees the cycle of graph,
// plan and nodes.
void add_plan_type(PyObject* extension);

}  // namespace fxpress::engine
