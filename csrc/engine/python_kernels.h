// Finds the operators that may run Python code when they are called through the dispatcher.
#pragma once

#include <ATen/core/operator_name.h>

#include <cstdint>

namespace fxpress::engine {

// A number that changes when kernels in Python come or go; never 0. All functions here need the
// GIL.
uint64_t kernels_version();

// Whether the operator may run Python code. An operator of aten does when a kernel in Python is
// registered for it. For others this is not known: custom operators, and those of prims.
bool may_run_python(const c10::OperatorName& name);

}  // namespace fxpress::engine
