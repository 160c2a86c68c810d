// Converts values and errors between Python and C++ by torch's functions. Only convert.cpp includes
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

// Converts a constant argument of an operator. Returns nullopt if only Python can pass the
// argument. Ignores active modes, because the plan stores the result for many runs.
std::optional<c10::IValue> constant_value(const c10::Argument& argument, PyObject* object,
                                          bool numbers_as_tensors);

// Returns whether the operator accepts numbers for parameters of type Tensor.
bool takes_numbers_as_tensors(const c10::FunctionSchema& schema);

// Calls an operator for which takes_numbers_as_tensors() is true. During this call, torch allows a
// Python kernel to receive numbers and to return a number.
void call_with_numbers(const c10::OperatorHandle& op, c10::Stack& stack);

Ref value_to_object(c10::IValue value);

bool is_jit_tracing();

// Sets the Python error that a Python caller of an operator gets if the operator throws `thrown`.
// Requires the GIL.
void set_python_error(const std::exception_ptr& thrown) noexcept;

}  // namespace fxpress::engine
