// The targets of nodes in a file and what they stand for; Python is asked once for each.
#pragma once

#include <deque>
#include <string>
#include <string_view>
#include <vector>

#include "py/object.h"
#include "serde/text_map.h"

namespace fxpress::serde {

struct TargetArgument {
  std::string name;        // in the schema
  bool positional;         // by default: it must be given, and not by name only
  bool is_python_keyword;  // cannot be given by name
};

struct Target {
  enum class Kind : uint8_t { kSymbolic, kSchema, kHigherOrder, kCallable } kind;
  Ref object;                             // the operator or function
  bool single_tensor;                     // its only result is a tensor
  bool constrains;                        // it tells something of symbols
  std::vector<TargetArgument> arguments;  // kSchema
};

// resolve_target(text) returns (kind, object, ((name, positional, is keyword), ...),
// single tensor, constrains), and raises for what is not an operator.
class TargetTable {
 public:
  // Makes a target from such a tuple.
  static Target described(PyObject* parts);

  // The target, which stays where it is as long as the table lives.
  const Target& get(std::string_view text);

 private:
  TextMap<const Target*> known_;  // by text
  std::deque<Target> targets_;    // what is known
};

}  // namespace fxpress::serde
