// Converts values and errors between Python and C++ by torch's rules. Only convert.cpp includes
// torch's pybind_utils.h, which takes a minute to compile.
#pragma once

#include <ATen/core/dispatch/Dispatcher.h>
#include <ATen/core/function_schema.h>
#include <ATen/core/ivalue.h>
#include <ATen/core/stack.h>

#include <exception>
#include <optional>

#include "engine/symbols.h"

namespace fxpress::engine {

// Converts a constant argument of an operator; returns nullopt if only Python can pass it. The
// result does not depend on active modes, because many runs use it.
std::optional<c10::IValue> constant_value(const c10::Argument& argument, PyObject* object,
                                          bool numbers_as_tensors);

// Whether the operator accepts numbers for parameters of type Tensor.
bool takes_numbers_as_tensors(const c10::FunctionSchema& schema);

// Calls an operator for which takes_numbers_as_tensors() is true. A kernel in Python receives
// numbers and may return one, which torch allows only during the call.
void call_with_numbers(const c10::OperatorHandle& op, c10::Stack& stack);

Ref value_to_object(c10::IValue value);

// Whether torch.jit.trace is active in this thread.
bool is_jit_tracing();

// Sets the Python error that torch sets if an operator that Python calls throws this exception.
// Requires the GIL.
void set_python_error(const std::exception_ptr& thrown) noexcept;

}  // namespace fxpress::engine
