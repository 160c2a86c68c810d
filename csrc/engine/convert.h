// Between Python and C++ by torch's own rules: values and errors. The only file of the engine that
// includes torch's binding headers, which take a minute to compile.
#pragma once

#include <ATen/core/dispatch/Dispatcher.h>
#include <ATen/core/function_schema.h>
#include <ATen/core/ivalue.h>
#include <ATen/core/stack.h>

#include <exception>
#include <optional>

#include "engine/symbols.h"

namespace fxpress::engine {

// Converts a constant argument of an operator; returns nothing when only Python can pass it. Many
// runs use the value, so it does not depend on the modes that are on now.
std::optional<c10::IValue> constant_value(const c10::Argument& argument, PyObject* object,
                                          bool numbers_as_tensors);

// Whether the operator takes numbers where its schema says Tensor.
bool takes_numbers_as_tensors(const c10::FunctionSchema& schema);

// Calls such an operator. A kernel in Python gets these numbers as numbers, and may return one:
// torch allows that for as long as the call lasts.
void call_with_numbers(const c10::OperatorHandle& op, c10::Stack& stack);

Ref value_to_object(c10::IValue value);

// Whether torch.jit.trace is at work in this thread.
bool is_jit_tracing();

// Sets the Python error that torch sets when an operator that Python calls throws this. With the
// GIL.
void set_python_error(const std::exception_ptr& thrown) noexcept;

}  // namespace fxpress::engine
