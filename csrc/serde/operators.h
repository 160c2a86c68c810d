// Describes operators for encoding and decoding; Python provides each description once.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "core/text_hash.h"
#include "py/object.h"
#include "py/object_table.h"

namespace fxpress::serde {

using core::TextMap;

// Returns map[text]; adds an empty entry if there is none.
template <class T>
T& entry(TextMap<T>& map, std::string_view text) {
  if (const auto known = map.find(text); known != map.end()) return known->second;
  return map.emplace(text, T()).first->second;
}

// Values of the schema's ArgumentKind, which states how an argument is passed.
inline constexpr int64_t kPositional = 1;
inline constexpr int64_t kKeyword = 2;

enum class OperatorKind : uint8_t {
  kGetItem,      // written with the node whose result it takes
  kSymbolic,     // a function on numbers; arguments are named after its parameters
  kSchema,       // an operator with a schema: OpOverload or a registered extension
  kHigherOrder,  // arguments have no names and may be graphs
  kSpecial,      // higher-order, with arguments that Python prepares
  kCallable,     // any other function; written like kHigherOrder
  kUnsupported,
};

struct OperatorArgument {
  std::string name;        // its name in the schema
  bool keyword_only;       // must be passed by name
  bool required;           // has no default
  bool is_python_keyword;  // cannot be passed by name
  Ref type;                // its type in the schema, for empty lists; or None
};

enum class ReturnKind : uint8_t { kTensor, kTensorList, kOther };

struct Operator {
  OperatorKind kind;
  bool is_allowed;     // torch's verifier surely accepts it
  bool is_functional;  // is_allowed, and it writes none of its arguments
  bool takes_numbers;  // whether it is decoded like kSymbolic: true also for aten.item
  bool constrains;     // calling it constrains the range of a symbol
  std::string name;    // its name in files
  Ref object;          // the operator, or null
  std::vector<OperatorArgument> arguments;  // only of kSchema and kSymbolic
  std::vector<ReturnKind> returns;          // kSchema

  // Whether it has one result, of this type.
  bool returns_single(ReturnKind single) const {
    return returns.size() == 1 && returns[0] == single;
  }
};

// Makes an Operator from the result of describe_operator(object): (kind, name, ((name,
// keyword_only, required, is a keyword of Python, type), ...), (return kind, ...), allowed,
// functional, takes numbers, constrains).
Operator operator_of(PyObject* described, PyObject* object);

class OperatorTable {
 public:
  // Returns the description of an operator; its address is valid as long as the table exists.
  const Operator& get(PyObject* target);
  // Returns the operator with the name `text` in files. resolve(text) returns (operator,
  // description), or raises an error if there is no such operator or files may not call it.
  const Operator& get(std::string_view text, PyObject* resolve);

 private:
  ObjectMap<Operator> operators_;
  TextMap<const Operator*> by_text_;
};

}  // namespace fxpress::serde
