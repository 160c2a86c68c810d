// The inputs and outputs of a graph signature: one table for all that read, write, sort, hash or
// check them.
#pragma once

#include <cstdint>
#include <string_view>

#include "schema/schema.h"

namespace fxpress::schema {

enum class SpecArgument : uint8_t {
  kAny,      // an Argument
  kTensor,   // a TensorArgument
  kToken,    // a TokenArgument
  kObject,   // a CustomObjArgument
  kLiteral,  // a ConstantValue
};

enum class SpecTarget : uint8_t {
  kNone,         // without a target: known by the position
  kState,        // a parameter or buffer, known by its name
  kConstant,     // a constant or object, known by its value
  kInput,        // a user input, by the name of its value in the graph
  kLiteralName,  // of a constant input; in torch's objects it is the argument's name
};

// The fields are in the order in which the rows of the table are read.
struct SpecInfo {              // NOLINT(clang-analyzer-optin.performance.Padding)
  Field tag;                   // of InputSpec or OutputSpec
  const char* torch_name;      // the member of torch's InputKind or OutputKind
  Field argument;              // of the record
  SpecArgument argument_type;  // see there
  Field target;                // of the record; kUnknown: without a target
  SpecTarget target_type;      // see there
  int rank;                    // in the canonical form
  int verifier_rank;           // outputs: torch's verifier wants them in this order
  std::string_view hash_word;  // begins the hash: a promise

  // Whether torch's objects have a target.
  bool has_target() const {
    return target_type != SpecTarget::kNone && target_type != SpecTarget::kLiteralName;
  }
};

// torch has no InputKind for constant inputs: they are user inputs with a literal.
inline constexpr SpecInfo kSpecs[] = {
    {Field::InputSpec_user_input, "USER_INPUT", Field::UserInputSpec_arg, SpecArgument::kAny,
     Field::kUnknown, SpecTarget::kNone, 5, 0, "user"},
    {Field::InputSpec_constant_input, "", Field::InputToConstantInputSpec_value,
     SpecArgument::kLiteral, Field::InputToConstantInputSpec_name, SpecTarget::kLiteralName, 6, 0,
     "user"},
    {Field::InputSpec_parameter, "PARAMETER", Field::InputToParameterSpec_arg,
     SpecArgument::kTensor, Field::InputToParameterSpec_parameter_name, SpecTarget::kState, 1, 0,
     "parameter"},
    {Field::InputSpec_buffer, "BUFFER", Field::InputToBufferSpec_arg, SpecArgument::kTensor,
     Field::InputToBufferSpec_buffer_name, SpecTarget::kState, 2, 0, "buffer"},
    {Field::InputSpec_tensor_constant, "CONSTANT_TENSOR", Field::InputToTensorConstantSpec_arg,
     SpecArgument::kTensor, Field::InputToTensorConstantSpec_tensor_constant_name,
     SpecTarget::kConstant, 3, 0, "constant"},
    {Field::InputSpec_custom_obj, "CUSTOM_OBJ", Field::InputToCustomObjSpec_arg,
     SpecArgument::kObject, Field::InputToCustomObjSpec_custom_obj_name, SpecTarget::kConstant, 4,
     0, "object"},
    {Field::InputSpec_token, "TOKEN", Field::InputTokenSpec_arg, SpecArgument::kToken,
     Field::kUnknown, SpecTarget::kNone, 0, 0, "token"},

    {Field::OutputSpec_user_output, "USER_OUTPUT", Field::UserOutputSpec_arg, SpecArgument::kAny,
     Field::kUnknown, SpecTarget::kNone, 4, 2, "user_output"},
    {Field::OutputSpec_loss_output, "LOSS_OUTPUT", Field::LossOutputSpec_arg, SpecArgument::kTensor,
     Field::kUnknown, SpecTarget::kNone, 4, 2, "loss_output"},
    {Field::OutputSpec_buffer_mutation, "BUFFER_MUTATION", Field::BufferMutationSpec_arg,
     SpecArgument::kTensor, Field::BufferMutationSpec_buffer_name, SpecTarget::kState, 2, 1,
     "buffer"},
    {Field::OutputSpec_parameter_mutation, "PARAMETER_MUTATION", Field::ParameterMutationSpec_arg,
     SpecArgument::kTensor, Field::ParameterMutationSpec_parameter_name, SpecTarget::kState, 1, 1,
     "parameter"},
    {Field::OutputSpec_gradient_to_parameter, "GRADIENT_TO_PARAMETER",
     Field::GradientToParameterSpec_arg, SpecArgument::kTensor,
     Field::GradientToParameterSpec_parameter_name, SpecTarget::kState, 5, 3, "gradient"},
    {Field::OutputSpec_gradient_to_user_input, "GRADIENT_TO_USER_INPUT",
     Field::GradientToUserInputSpec_arg, SpecArgument::kTensor,
     Field::GradientToUserInputSpec_user_input_name, SpecTarget::kInput, 6, 3, "input gradient"},
    {Field::OutputSpec_user_input_mutation, "USER_INPUT_MUTATION", Field::UserInputMutationSpec_arg,
     SpecArgument::kTensor, Field::UserInputMutationSpec_user_input_name, SpecTarget::kInput, 3, 1,
     "input"},
    {Field::OutputSpec_token, "TOKEN", Field::OutputTokenSpec_arg, SpecArgument::kToken,
     Field::kUnknown, SpecTarget::kNone, 0, 0, "token"},
};

// The row of a field of InputSpec or OutputSpec; null for a field that only a later torch has.
inline const SpecInfo* find_spec(Field tag) {
  for (const SpecInfo& spec : kSpecs) {
    if (spec.tag == tag) return &spec;
  }
  return nullptr;
}

}  // namespace fxpress::schema
