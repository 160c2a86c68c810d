#include "engine/convert.h"

#include <c10/core/InferenceMode.h>
#include <c10/core/impl/LocalDispatchKeySet.h>
#include <torch/csrc/Exceptions.h>
#include <torch/csrc/autograd/python_variable.h>
#include <torch/csrc/jit/python/pybind_utils.h>

#include <algorithm>
#include <new>
#include <stdexcept>

#include "engine/slot.h"
#include "engine/symbols.h"
#include "py/calls.h"

namespace fxpress::engine {

namespace {

// Returns whether the object is or contains a tensor that is not plain and may override the call.
bool has_unusual_tensor(PyObject* object) {
  if (PyTuple_Check(object) || PyList_Check(object)) {
    PyObject** items = PySequence_Fast_ITEMS(object);
    return std::any_of(items, items + PySequence_Fast_GET_SIZE(object), has_unusual_tensor);
  }
  return THPVariable_Check(object) && !is_plain(THPVariable_Unpack(object));
}

}  // namespace

std::optional<c10::IValue> constant_value(const c10::Argument& argument, PyObject* object,
                                          bool numbers_as_tensors) {
  if (has_unusual_tensor(object)) return std::nullopt;
  // The operator writes to this argument or returns a view of it. torch converts a number to a new
  // tensor in each call, so the plan must not store one tensor for all runs.
  if (argument.alias_info() != nullptr && !THPVariable_Check(object)) return std::nullopt;
  // A number must not become a fake tensor or an inference tensor, which autograd could not save.
  const c10::InferenceMode ordinary(false);
  const c10::impl::ForceDispatchKeyGuard no_modes(c10::default_included_set,
                                                  c10::default_excluded_set);
  const torch::jit::ToIValueAllowNumbersAsTensors numbers(numbers_as_tensors);
  try {
    return torch::jit::toIValue(object, argument.real_type(), argument.N());
  } catch (const pybind11::error_already_set&) {
    return std::nullopt;
  } catch (const std::exception&) {
    PyErr_Clear();  // a python_error of torch leaves Python's error set
    return std::nullopt;
  }
}

bool takes_numbers_as_tensors(const c10::FunctionSchema& schema) {
  const auto symbol = c10::Symbol::fromQualString(schema.name());
  return symbol.is_prims() || symbol.is_nvprims() ||
         (symbol.is_aten() && torch::should_allow_numbers_as_tensors(symbol.toUnqualString()));
}

void call_with_numbers(const c10::OperatorHandle& op, c10::Stack& stack) {
  const torch::jit::ToIValueAllowNumbersAsTensors numbers(true);
  op.callBoxed(stack);
}

Ref value_to_object(c10::IValue value) {
  // The elements are converted one by one, because torch cannot convert a tuple that contains an
  // undefined tensor: such a tensor does not have a type.
  if (value.isTuple()) {
    const auto& elements = value.toTupleRef().elements();
    return make_tuple(elements.size(), [&](size_t i) { return value_to_object(elements[i]); });
  }
  return Ref::steal(torch::jit::toPyObject(std::move(value)).release().ptr());
}

bool is_jit_tracing() {
  return torch::jit::tracer::isTracing();
}

void set_python_error(const std::exception_ptr& thrown) noexcept {
  // If symbols.plain_errors is true, torch raises RuntimeError for exceptions that it does not
  // define. Older releases call operators through pybind11, which converts them as below.
  try {
    if (symbols.plain_errors == Py_True) return torch::translate_exception_to_python(thrown);
    std::rethrow_exception(thrown);
  } catch (const std::bad_alloc& error) {
    PyErr_SetString(PyExc_MemoryError, error.what());
  } catch (const std::out_of_range& error) {
    PyErr_SetString(PyExc_IndexError, error.what());
  } catch (const std::overflow_error& error) {
    PyErr_SetString(PyExc_OverflowError, error.what());
  } catch (const std::domain_error& error) {
    PyErr_SetString(PyExc_ValueError, error.what());
  } catch (const std::invalid_argument& error) {
    PyErr_SetString(PyExc_ValueError, error.what());
  } catch (const std::length_error& error) {
    PyErr_SetString(PyExc_ValueError, error.what());
  } catch (const std::range_error& error) {
    PyErr_SetString(PyExc_ValueError, error.what());
  } catch (const std::exception&) {
    torch::translate_exception_to_python(thrown);
  } catch (...) {
    PyErr_SetString(PyExc_RuntimeError, "Caught an unknown exception!");
  }
}

}  // namespace fxpress::engine
