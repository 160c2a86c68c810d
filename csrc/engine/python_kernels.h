// Finds the operators that may run Python code when they are called through the dispatcher.
#pragma once

#include <ATen/core/operator_name.h>

#include <cstdint>

namespace fxpress::engine {

// A number that changes when kernels in Python come or go; never 0. With the GIL, as all of it.
uint64_t kernels_version();

// Operators of aten do so when somebody has registered a kernel in Python for them. Of the others
// that is not known: custom operators, and those of prims.
bool may_run_python(const c10::OperatorName& name);

}  // namespace fxpress::engine
