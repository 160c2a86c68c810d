// Parses Python expressions, prints them like ast.unparse, and finds common subexpressions. The
// parser rejects syntax that it does not cover: f-strings, lambdas, slices, comprehensions, ...
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
  kAttribute,  // text: the attribute; in: object
  kCall,       // text: keywords, joined by ","; in: function, arguments
  kSubscript,  // in: object, index
  kTuple,
  kList,
  kUnary,    // text: the operator
  kBinary,   // text: the operator
  kBoolean,  // text: the operator
  kCompare   // text: the operators, joined by ","
};

// A table of expressions; equal expressions have one id.
class Expressions {
 public:
  static constexpr int kMaxDepth = 100;  // the parser does not cover deeper expressions

  struct Expression {
    ExpressionKind kind;
    int depth;                     // 1 for an expression without parts
    std::string_view text;         // see ExpressionKind
    std::vector<ExpressionId> in;  // the expressions in it, in the order of the source
  };

  // Parses a text. Returns nullopt if the text is not an expression, has syntax that the parser
  // does not cover, or is nested deeper than `max_open`.
  std::optional<ExpressionId> parse(std::string_view text, int max_open = kMaxDepth);
  // Returns the text of ast.unparse, on one line.
  std::string print(ExpressionId id) const;

  const Expression& operator[](ExpressionId id) const { return expressions_[id]; }
  size_t size() const { return expressions_.size(); }
  // Returns the expression of this type with these parts, added if it is new; copies the text.
  ExpressionId make(ExpressionKind kind, std::string_view text, std::span<const ExpressionId> in);

 private:
  std::deque<Expression> expressions_;  // by id
  core::TextMap<ExpressionId> ids_;     // key: bytes of kind, parts and text
  std::string key_;                     // a buffer of make(), reused by all calls
};

// Replaces parts that occur several times in Python expressions by variables. Parts are attributes,
// calls and subscripts. Parts inside other parts get their variables first.
class CommonSubexpressions {
 public:
  // Counts all parts of an expression. Returns nullopt, without counting, if parse() does.
  std::optional<ExpressionId> count(std::string_view text);

  struct Replaced {
    std::vector<std::string> assignments;  // to variables, each after the ones that it uses
    std::string text;
  };
  // Returns a counted expression with its common parts replaced. Must not be called before all
  // expressions are counted.
  Replaced replace(ExpressionId id);

  // The caller uses the next four functions for expressions that parse() rejects. `text`: a part as
  // ast.unparse prints it.
  void count_part(std::string_view text) { ++entry(part(text)).uses; }
  bool is_common(std::string_view text) { return entry(part(text)).uses > 1; }
  // The variable of a part, or nullopt.
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
