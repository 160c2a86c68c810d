// Kinds of the specs of a signature, in the order of python/fxpress/_serde/native.py.
#pragma once

#include "py/object.h"

namespace fxpress::fx::serde {

enum class InputKind : uint8_t {
  kUserInput,
  kParameter,
  kBuffer,
  kConstantTensor,
  kCustomObject,
  kToken
};
enum class OutputKind : uint8_t {
  kUserOutput,
  kLossOutput,
  kBufferMutation,
  kParameterMutation,
  kGradientToParameter,
  kGradientToUserInput,
  kUserInputMutation,
  kToken
};

// AssertionError for a kind that is not known.
InputKind input_kind(PyObject* spec);
OutputKind output_kind(PyObject* spec);

}  // namespace fxpress::fx::serde
