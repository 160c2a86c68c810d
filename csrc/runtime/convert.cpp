#include "runtime/convert.h"

#include <c10/core/InferenceMode.h>
#include <c10/core/impl/LocalDispatchKeySet.h>
#include <torch/csrc/jit/python/pybind_utils.h>

namespace fxpress::runtime {

std::optional<c10::IValue> constant_value(const c10::Argument& argument, PyObject* object,
                                          bool numbers_as_tensors) {
  // A number that stands for a tensor becomes one here: neither a fake one nor one of inference
  // mode, which autograd could not save.
  const c10::InferenceMode ordinary(false);
  const c10::impl::ForceDispatchKeyGuard no_modes(c10::default_included_set,
                                                  c10::default_excluded_set);
  const torch::jit::ToIValueAllowNumbersAsTensors numbers(numbers_as_tensors);
  try {
    return torch::jit::toIValue(object, argument.real_type(), argument.N());
  } catch (const pybind11::error_already_set&) {
    return std::nullopt;
  } catch (const std::exception&) {
    return std::nullopt;
  }
}

bool takes_numbers_as_tensors(const c10::FunctionSchema& schema) {
  const auto symbol = c10::Symbol::fromQualString(schema.name());
  return symbol.is_prims() || symbol.is_nvprims() ||
         (symbol.is_aten() && torch::should_allow_numbers_as_tensors(symbol.toUnqualString()));
}

Ref value_to_object(c10::IValue value) {
  return Ref::steal(torch::jit::toPyObject(std::move(value)).release().ptr());
}

bool is_jit_tracing() {
  return torch::jit::tracer::isTracing();
}

}  // namespace fxpress::runtime
