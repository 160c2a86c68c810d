// The gate: every text of a file passes it before anything is made of the file. What passes can
// stand where torch, fx, dataclasses and fxpress put texts: in source code, in paths of attributes,
// in messages and in comments of generated code.
#pragma once

#include <stdexcept>
#include <string>
#include <string_view>

#include "schema/document.h"

namespace fxpress::schema {

// Whether a text that is not ASCII is an identifier of Python, which has the tables for that.
using IsUnicodeIdentifier = bool (*)(std::string_view);

// The grammar of guards: conditions on the inputs of a program, which torch runs as Python code.
// Whether a text is a guard, on one line, as torch writes them:
//
//   guard       a condition of those below
//   conditions  and, or, not, ==, !=, <, <=, >, >=, "a if b else c"
//   numbers     + - * / // % ** << >> & | ^ ~; exponents of powers, and bits of shifts, are sums of
//               small numbers, of inputs and sizes, and of floats, as their results are bounded
//   functions   that are listed in guard_grammar.cpp: max, math.floor, torch.sym_float, ...
//   inputs      L['name'], and of what it holds: ['key'], [0], .attribute, .size(), .stride(),
//               .storage_offset(), .item(), .numel(), .dim()
//   constants   numbers, True, False, None, math.inf, texts without quotes
bool is_guard(std::string_view text);

// A text that breaks the rule of its field.
class GateError : public std::runtime_error {
 public:
  GateError(std::string path, Rule rule, std::string_view value);

  const std::string& path() const { return path_; }  // of the field, in the document
  const std::string& value() const { return value_; }
  const char* fault() const;  // what is said of the value

 private:
  std::string path_;
  std::string value_;
  Rule rule_;
};

// Whether a text passes a rule for single texts.
bool passes(Rule rule, std::string_view text, IsUnicodeIdentifier is_identifier);

// The rule with this name, without the "k": "Identifier". kNone when there is none.
Rule rule_named(std::string_view name);
std::string_view name_of(Rule rule);
// The words of an error for a text that breaks the rule.
const char* fault_of(Rule rule);

// Throws GateError for the first text in the document that breaks the rule of its field.
void pass_gate(const Document& document, IsUnicodeIdentifier is_identifier);

}  // namespace fxpress::schema
