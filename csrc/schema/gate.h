// Defines the gate: a check of every text of a file, before objects are built from the file. A text
// that passes is safe where torch and fxpress insert it: in source code and its comments, in
// attribute paths and in messages.
#pragma once

#include <stdexcept>
#include <string>
#include <string_view>

#include "schema/document.h"

namespace fxpress::schema {

// Whether a text with non-ASCII characters is an identifier. Python provides this function.
using IsUnicodeIdentifier = bool (*)(std::string_view);

// Whether a text is a guard on one line as torch writes it. A guard is a condition on the inputs of
// a program. torch runs it as Python code. The grammar:
//
//   conditions  and, or, not, ==, !=, <, <=, >, >=, "a if b else c"
//   numbers     + - * / // % ** << >> & | ^ ~. To bound the results, exponents and shift counts are
//               sums of small numbers, inputs, sizes and floats.
//   functions   listed in guard_grammar.cpp: max, math.floor, torch.sym_float, ...
//   inputs      L['name'], and its contents: ['key'], [0], .attribute, .size(), .stride(),
//               .storage_offset(), .item(), .numel(), .dim()
//   constants   numbers, True, False, None, math.inf, strings that do not contain ' or "
bool is_guard(std::string_view text);

// Whether a text passes a rule. Always false for kNone, and for kNodeMetadata and kGraphMetadata,
// because these two rules apply to a text together with its key.
bool passes(Rule rule, std::string_view text, IsUnicodeIdentifier is_identifier);

// Returns the rule of a name such as "Identifier" (without "k"); kNone for an unknown name.
Rule rule_named(std::string_view name);
std::string_view name_of(Rule rule);
// The end of the error message for a text that breaks the rule: "is not an identifier".
const char* fault_of(Rule rule);

// Thrown for a text that breaks the rule of its field.
class GateError : public std::runtime_error {
 public:
  GateError(std::string path, Rule rule, std::string_view value);

  const std::string& path() const { return path_; }  // path of the field that contains the text
  const std::string& value() const { return value_; }
  const char* fault() const { return fault_of(rule_); }

 private:
  std::string path_;
  std::string value_;
  Rule rule_;
};

// Throws GateError for the first text in the document that breaks the rule of its field.
void pass_gate(const Document& document, IsUnicodeIdentifier is_identifier);

}  // namespace fxpress::schema
