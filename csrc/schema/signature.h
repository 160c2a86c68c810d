// Describes the types of inputs and outputs of a graph signature in one table, kSpecs. Signatures
// are read, written, sorted, hashed and checked by this table.
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
  kNone,         // no target; in hashes, the position identifies the spec
  kState,        // name of a parameter or buffer
  kConstant,     // name of a constant or object; in hashes, its value identifies the spec
  kInput,        // name of a user input's value in the graph
  kLiteralName,  // name of a constant input; torch's objects store this name in the argument
};

// A row of kSpecs. The fields are in the order of the table's columns.
struct SpecInfo {              // NOLINT(clang-analyzer-optin.performance.Padding)
  Field tag;                   // the field of InputSpec or OutputSpec that is set
  const char* torch_name;      // the member of torch's InputKind or OutputKind
  Field argument;              // field of the spec's record that contains the argument
  SpecArgument argument_type;  // type of the value in `argument`
  Field target;                // field of that record that contains the target, or kUnknown
  SpecTarget target_type;      // type of the value in `target`
  int rank;                    // sort order of this type in the canonical form
  int verifier_rank;           // sort order of outputs that torch's verifier requires
  std::string_view hash_word;  // first text of the spec's hash; a change would change all hashes

  // Whether specs of this type have a `target` in torch.
  bool has_target() const {
    return target_type != SpecTarget::kNone && target_type != SpecTarget::kLiteralName;
  }
};

// torch has no InputKind for constant inputs. In torch, they are user inputs with a literal value.
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

// Returns the row of kSpecs for a field of InputSpec or OutputSpec; null for an unknown field.
inline const SpecInfo* find_spec(Field tag) {
  for (const SpecInfo& spec : kSpecs) {
    if (spec.tag == tag) return &spec;
  }
  return nullptr;
}

}  // namespace fxpress::schema
