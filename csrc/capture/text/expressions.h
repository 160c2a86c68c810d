// Python expressions: parsed, printed as ast.unparse does, and their common parts. The parser
// refuses what it does not cover: f-strings, lambdas, slices, comprehensions, ...
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

// A table that has equal expressions once.
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
  std::deque<Expression> expressions_;  // by id
  core::TextMap<ExpressionId> ids_;     // by kind, parts and text, as bytes
  std::string key_;                     // kept from call to call
};

// Puts the common parts of several Python expressions into variables. Attributes, calls and
// subscripts count as parts; inner ones come first.
class CommonSubexpressions {
 public:
  // Counts all parts of an expression. Returns nothing for one that is not covered, and does not
  // count it.
  std::optional<ExpressionId> count(std::string_view text);

  struct Replaced {
    std::vector<std::string> assignments;  // new variables, in the order that they need each other
    std::string text;
  };
  // An expression that was counted, with variables in it. All have to have been counted before.
  Replaced replace(ExpressionId id);

  // For expressions that are not covered: their parts, as ast.unparse prints them.
  void count_part(std::string_view text) { ++entry(part(text)).uses; }
  bool is_common(std::string_view text) { return entry(part(text)).uses > 1; }
  // The variable that stands for a part, or nothing.
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
  std::vector<CountedPart> entries_;  // by expression
  size_t variables_ = 0;
};

}  // namespace fxpress::capture
