// Python expressions as a table that has equal ones once: parsed, and printed as ast.unparse does.
// The parser refuses what it does not cover: f-strings, lambdas, slices, comprehensions, ...
#pragma once

#include <cstdint>
#include <deque>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <unordered_map>
#include <vector>

namespace fxpress::capture {

using ExpressionId = uint32_t;

enum class ExpressionKind : uint8_t {
  kName,       // text
  kConstant,   // text
  kAttribute,  // text: its name; the object
  kCall,       // text: names of the keyword arguments, ", " between; function, arguments
  kSubscript,  // object, index
  kTuple,
  kList,
  kUnary,    // text: the operator
  kBinary,   // text: the operator
  kBoolean,  // text: the operator
  kCompare   // text: the operators, ", " between
};

class Expressions {
 public:
  static constexpr int kMaxDepth = 100;  // what is deeper, Python decides about, by its own limits

  struct Expression {
    ExpressionKind kind;
    int depth;                     // of what is in it, and 1
    std::string_view text;         // see the kinds
    std::vector<ExpressionId> in;  // in the order of the source
  };

  // Returns nothing for a text that is not covered, or is no expression. A text that is nested
  // deeper than `max_open` is not covered.
  std::optional<ExpressionId> parse(std::string_view text, int max_open = kMaxDepth);
  // Returns the text that ast.unparse makes, on one line.
  std::string print(ExpressionId id) const;

  const Expression& operator[](ExpressionId id) const { return expressions_[id]; }
  size_t size() const { return expressions_.size(); }
  // Returns the expression with these parts; the text is copied.
  ExpressionId make(ExpressionKind kind, std::string_view text, std::span<const ExpressionId> in);

 private:
  std::deque<Expression> expressions_;                 // by id
  std::unordered_map<std::string, ExpressionId> ids_;  // by kind, parts and text, as bytes
  std::string key_;                                    // kept from call to call
};

}  // namespace fxpress::capture
