// Finds operators that were removed, for example with a destroyed `torch.library.Library`, and
// operators that may run Python code when the dispatcher calls them.
#pragma once

#include <ATen/core/dispatch/Dispatcher.h>
#include <ATen/core/operator_name.h>

#include <cstdint>
#include <optional>

#include "engine/symbols.h"

namespace fxpress::engine {

// Starts to record removed operators; called once.
void watch_operators();

// Returns the number of operators removed so far.
uint64_t operators_gone();

// Whether the operator was removed since operators_gone() returned `since`. If so, its handle is
// invalid.
bool has_gone(const c10::OperatorHandle& op, uint64_t since);

// Returns the operator of an OpOverload; nullopt if the dispatcher does not have the operator.
std::optional<c10::OperatorHandle> find_operator(PyObject* overload);

// Returns the callee to use instead of an OpOverload. Calling an OpOverload whose operator was
// removed ends the process. So once any operator was removed, returns the OpOverload that is now
// registered under the name; RuntimeError if there is none. Does not change other callees.
Ref living_callee(PyObject* callee);

// Returns a number that changes when kernels in Python are added or removed; never 0. Requires the
// GIL, as do find_operator, living_callee and may_run_python.
uint64_t kernels_version();

// Whether the operator may run Python code: an operator of aten does if it has a kernel in Python,
// and operators of other namespaces (custom operators, prims) always may.
bool may_run_python(const c10::OperatorName& name);

}  // namespace fxpress::engine
