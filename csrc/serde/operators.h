// The facts about operators that serialization needs; Python is asked once for each operator.
#pragma once

#include <deque>
#include <string>
#include <vector>

#include "core/flat_map.h"
#include "py/object.h"

namespace fxpress::serde {

enum class OperatorKind : uint8_t {
  kGetItem,      // written with the node that it reads
  kSymbolic,     // a function on numbers: arguments have the names of its parameters
  kSchema,       // an operator with a schema: OpOverload or a registered extension
  kHigherOrder,  // arguments have no names; graphs may be among them
  kSpecial,      // higher-order, with arguments that Python prepares
  kCallable,     // another function: as kHigherOrder
  kUnsupported,
};

struct OperatorArgument {
  std::string name;   // in the schema
  bool keyword_only;  // must be given by name
  Ref type;           // of the schema, for empty lists; or None
};

enum class ReturnKind : uint8_t { kTensor, kTensorList, kOther };

struct Operator {
  OperatorKind kind;
  bool single_list;                         // the only result is a list of tensors
  bool is_allowed;                          // torch's verifier takes it for sure
  bool is_functional;                       // and it writes none of its arguments
  std::string name;                         // as in the file
  std::vector<OperatorArgument> arguments;  // kSchema, kSymbolic
  std::vector<ReturnKind> returns;          // kSchema
};

// Makes an Operator from the result of describe_operator(target): (kind, name, ((name,
// keyword_only, type), ...), (return kind, ...), allowed, functional).
Operator operator_of(PyObject* described);

class OperatorTable {
 public:
  // The operator, which stays where it is as long as the table lives.
  const Operator& get(PyObject* target);

 private:
  core::FlatMap ids_;               // address of a target -> position
  std::vector<Ref> targets_;        // keeps addresses unique
  std::deque<Operator> operators_;  // by position
};

}  // namespace fxpress::serde
