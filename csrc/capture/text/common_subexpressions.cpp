#include "capture/text/expressions.h"
#include "core/check.h"

namespace fxpress::capture {

namespace {

bool may_be_common(ExpressionKind kind) {
  return kind == ExpressionKind::kAttribute || kind == ExpressionKind::kCall ||
         kind == ExpressionKind::kSubscript;
}

}  // namespace

std::optional<ExpressionId> CommonSubexpressions::count(std::string_view text) {
  const std::optional<ExpressionId> parsed = expressions_.parse(text);
  if (parsed) count_all(*parsed);
  return parsed;
}

void CommonSubexpressions::count_all(ExpressionId id) {
  const Expressions::Expression& expression = expressions_[id];
  if (may_be_common(expression.kind)) ++entry(id).uses;
  for (const ExpressionId inside : expression.in) count_all(inside);
}

CommonSubexpressions::Replaced CommonSubexpressions::replace(ExpressionId id) {
  FXPRESS_CHECK(id < expressions_.size(), "an expression was not counted");
  Replaced result;
  const ExpressionId replaced = replace(id, result.assignments);
  result.text = expressions_.print(replaced);
  return result;
}

ExpressionId CommonSubexpressions::replace(ExpressionId id, std::vector<std::string>& assignments) {
  if (!may_be_common(expressions_[id].kind) || entry(id).uses < 2) {
    return replace_inside(id, assignments);
  }
  if (const auto variable = entry(id).variable) return *variable;
  const std::string value = expressions_.print(replace_inside(id, assignments));
  const ExpressionId variable = add_variable(id);
  assignments.push_back(expressions_.print(variable) + " = " + value);
  return variable;
}

ExpressionId CommonSubexpressions::replace_inside(ExpressionId id,
                                                  std::vector<std::string>& assignments) {
  std::vector<ExpressionId> parts = expressions_[id].in;
  for (ExpressionId& part : parts) part = replace(part, assignments);
  return expressions_.make(expressions_[id].kind, expressions_[id].text, parts);
}

std::optional<std::string> CommonSubexpressions::variable(std::string_view text) {
  const auto found = entry(part(text)).variable;
  return found ? std::optional(expressions_.print(*found)) : std::nullopt;
}

std::string CommonSubexpressions::new_variable(std::string_view text) {
  return expressions_.print(add_variable(part(text)));
}

ExpressionId CommonSubexpressions::add_variable(ExpressionId id) {
  const std::string name = "_var" + std::to_string(variables_++);
  const ExpressionId made = expressions_.make(ExpressionKind::kName, name, {});
  entry(id).variable = made;
  return made;
}

ExpressionId CommonSubexpressions::part(std::string_view text) {
  // The printed text of an expression can have more parentheses than the text that was parsed.
  const int max_open = 3 * Expressions::kMaxDepth;
  if (const auto parsed = expressions_.parse(text, max_open)) return *parsed;
  // The parser rejects this text. It becomes a constant, which cannot equal a parsed constant.
  return expressions_.make(ExpressionKind::kConstant, text, {});
}

CommonSubexpressions::CountedPart& CommonSubexpressions::entry(ExpressionId id) {
  if (id >= entries_.size()) entries_.resize(expressions_.size());
  return entries_[id];
}

}  // namespace fxpress::capture
