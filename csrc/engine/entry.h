// The engine as Python calls it.
#pragma once

#include <pybind11/pybind11.h>

#include <cstdint>

#include "engine/symbols.h"

namespace fxpress::engine {

// run(module, graph, args) -> the graph's output, as a METH_FASTCALL function: the call itself is
// part of what a small graph takes. A list of arguments is emptied.
PyObject* run(PyObject* self, PyObject* const* args, Py_ssize_t count);

// Numbers that describe the graph's plan; None when it has none.
pybind11::object plan_info(const pybind11::object& graph);

// The index of a dispatcher's next call; -1 when it has no proper counter.
int64_t next_call(const pybind11::object& dispatcher);
void set_next_call(const pybind11::object& dispatcher, int64_t index);

// Makes the type of the object that owns a plan, and adds it to the extension module. The object is
// in the `__dict__` of the plan's graph, where the garbage collector sees the circle of graph, plan
// and nodes.
void add_plan_type(PyObject* extension);

}  // namespace fxpress::engine
