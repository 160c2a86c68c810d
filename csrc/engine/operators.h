// Operators that are removed, as by a `torch.library.Library` that is destroyed, and operators that
// may run Python code when they are called through the dispatcher.
#pragma once

#include <ATen/core/dispatch/Dispatcher.h>
#include <ATen/core/operator_name.h>

#include <cstdint>
#include <optional>

#include "engine/symbols.h"

namespace fxpress::engine {

// Starts to record which operators go; called once.
void watch_operators();

// How many operators have gone.
uint64_t operators_gone();

// Whether an operator has gone since there were so many of them: then its handle is not valid.
bool has_gone(const c10::OperatorHandle& op, uint64_t since);

// The operator behind an OpOverload; nothing when the dispatcher does not know it.
std::optional<c10::OperatorHandle> find_operator(PyObject* overload);

// Returns the callee that a call of an OpOverload has to use. When an operator has gone, this is
// the OpOverload that is registered under its name now, since calling one whose operator has gone
// ends the process. Raises RuntimeError when there is none. Other callees are returned as they are.
Ref living_callee(PyObject* callee);

// A number that changes when kernels in Python come or go; never 0. All functions here need the
// GIL.
uint64_t kernels_version();

// Whether the operator may run Python code. An operator of aten does when a kernel in Python is
// registered for it. For others this is not known: custom operators, and those of prims.
bool may_run_python(const c10::OperatorName& name);

}  // namespace fxpress::engine
