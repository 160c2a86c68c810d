// Puts the common parts of several Python expressions into variables. Attributes, calls and
// subscripts count as parts; inner ones come first.
#pragma once

#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "capture/text/expressions.h"

namespace fxpress::capture {

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
  struct Entry {
    size_t uses = 0;
    std::optional<ExpressionId> variable;
  };

  ExpressionId part(std::string_view text);
  Entry& entry(ExpressionId id);
  void count_all(ExpressionId id);
  ExpressionId replace(ExpressionId id, std::vector<std::string>& assignments);
  ExpressionId replace_inside(ExpressionId id, std::vector<std::string>& assignments);
  ExpressionId add_variable(ExpressionId id);

  Expressions expressions_;
  std::vector<Entry> entries_;  // by expression
  size_t variables_ = 0;
};

}  // namespace fxpress::capture
