// Declares the functions of the engine that Python calls.
#pragma once

#include <pybind11/pybind11.h>

#include <cstdint>

#include "engine/symbols.h"

namespace fxpress::engine {

// run(module, graph, args) -> the graph's output. A METH_FASTCALL function, because the overhead of
// the call is significant for a small graph. A list of arguments is emptied.
PyObject* run(PyObject* self, PyObject* const* args, Py_ssize_t count);

// Returns the sizes of the graph's plan as a dict; None without a plan.
pybind11::object plan_info(const pybind11::object& graph);

// Returns the `_call_modules` index of a dispatcher's next call; -1 if its counter is not an int.
int64_t next_call(const pybind11::object& dispatcher);
void set_next_call(const pybind11::object& dispatcher, int64_t index);

// Creates the type of the object that owns a plan, and adds it to the extension module. The object
// is stored in the `__dict__` of the plan's graph, so that the garbage collector sees the reference
// cycle of graph, plan and nodes.
void add_plan_type(PyObject* extension);

}  // namespace fxpress::engine
