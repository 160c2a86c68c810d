// Finds operators that were removed, for example with a destroyed `torch.library.Library`. Also
// finds operators that may run Python code when the dispatcher calls them.
#pragma once

#include <ATen/core/dispatch/Dispatcher.h>
#include <ATen/core/operator_name.h>

#include <cstdint>
#include <optional>

#include "engine/symbols.h"

namespace fxpress::engine {

// Starts to record removed operators. Must be called once.
void watch_operators();

// Returns the number of operators removed so far.
uint64_t operators_gone();

// Returns whether the operator was removed after operators_gone() returned `since`. If so, its
// handle is invalid.
bool has_gone(const c10::OperatorHandle& op, uint64_t since);

// Returns the operator of an OpOverload; nullopt if the dispatcher does not have it.
std::optional<c10::OperatorHandle> find_operator(PyObject* overload);

// Returns the object to call instead of `callee`. Calling an OpOverload whose operator was removed
// ends the process. After any removal, this function therefore returns the OpOverload that is now
// registered under its name, or raises RuntimeError. Other callees are returned unchanged.
Ref living_callee(PyObject* callee);

// Returns a number that changes when Python kernels are added or removed; never 0. Requires the
// GIL, as do find_operator, living_callee and may_run_python.
uint64_t kernels_version();

// Returns whether the operator may run Python code. This is true for an operator of aten with a
// Python kernel, and for all operators of other namespaces (custom operators, prims).
bool may_run_python(const c10::OperatorName& name);

}  // namespace fxpress::engine
