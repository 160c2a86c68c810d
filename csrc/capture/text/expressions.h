// Parses Python expressions, prints them like ast.unparse, and finds common subexpressions. The
// parser rejects f-strings, lambdas, slices, comprehensions and other rare syntax.
#pragma once

#include <cstdint>
#include <deque>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "core/text_hash.h"

namespace fxpress::capture {

using ExpressionId = uint32_t;

enum class ExpressionKind : uint8_t {
  kName,       // text: the name
  kConstant,   // text: the literal
  kAttribute,  // text: the attribute's name; in: the object
  kCall,       // text: keywords, joined by ","; in: the function, its arguments
  kSubscript,  // in: the object, the index
  kTuple,
  kList,
  kUnary,    // text: the operator
  kBinary,   // text: the operator
  kBoolean,  // text: the operator
  kCompare   // text: the operators, joined by ","
};

// A table of expressions, in which equal expressions have the same id.
class Expressions {
 public:
  static constexpr int kMaxDepth = 100;  // the parser rejects deeper expressions

  struct Expression {
    ExpressionKind kind;
    int depth;                     // 1 for an expression without subexpressions
    std::string_view text;         // see ExpressionKind
    std::vector<ExpressionId> in;  // direct subexpressions, in the order of the source
  };

  // Parses a text. Returns nullopt if the text is not an expression, has syntax that the parser
  // rejects, or has more than `max_open` nested brackets and operators.
  std::optional<ExpressionId> parse(std::string_view text, int max_open = kMaxDepth);
  // Returns the text that ast.unparse would print, on one line.
  std::string print(ExpressionId id) const;

  const Expression& operator[](ExpressionId id) const { return expressions_[id]; }
  size_t size() const { return expressions_.size(); }
  // Returns the id of an expression with direct subexpressions `in`. Adds it if it is new.
  ExpressionId make(ExpressionKind kind, std::string_view text, std::span<const ExpressionId> in);

 private:
  std::deque<Expression> expressions_;  // index: id
  core::TextMap<ExpressionId> ids_;     // key: bytes of kind, `in` and text
  std::string key_;                     // a buffer that make() reuses
};

// Replaces attributes, calls and subscripts that occur several times in Python expressions by
// variables. An inner common subexpression gets its variable before the outer one.
class CommonSubexpressions {
 public:
  // Parses a text, and counts all of its subexpressions. If parse() returns nullopt, counts
  // nothing.
  std::optional<ExpressionId> count(std::string_view text);

  struct Replaced {
    std::vector<std::string> assignments;  // assign variables; each may use earlier variables
    std::string text;
  };
  // Returns the text of `id` with variables for its common subexpressions. Must not be called
  // before count() has been called for all texts.
  Replaced replace(ExpressionId id);

  // The caller uses the next four functions for texts that parse() rejects. `text`: a subexpression
  // as ast.unparse prints it.
  void count_part(std::string_view text) { ++entry(part(text)).uses; }
  bool is_common(std::string_view text) { return entry(part(text)).uses > 1; }
  // Returns the variable of a subexpression, or nullopt.
  std::optional<std::string> variable(std::string_view text);
  std::string new_variable(std::string_view text);

 private:
  struct CountedPart {
    size_t uses = 0;
    std::optional<ExpressionId> variable;
  };

  ExpressionId part(std::string_view text);
  CountedPart& entry(ExpressionId id);
  void count_all(ExpressionId id);
  ExpressionId replace(ExpressionId id, std::vector<std::string>& assignments);
  ExpressionId replace_inside(ExpressionId id, std::vector<std::string>& assignments);
  ExpressionId add_variable(ExpressionId id);

  Expressions expressions_;
  std::vector<CountedPart> entries_;  // index: id of the expression
  size_t variables_ = 0;
};

}  // namespace fxpress::capture
