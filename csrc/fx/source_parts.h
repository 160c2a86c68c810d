// Handles parts of generated source: local names, functions, and inputs that a spec flattens.
#pragma once

#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "py/object.h"

namespace fxpress::fx {

// ---- local names in the source ----

// Marks the start of each local name while a text is generated. A repr cannot contain this
// character. If an attribute name contains it, torch's generator writes the source.
constexpr char kLocalMark = '\x01';

std::string without_marks(std::string_view marked);

struct TextShape {
  std::string key;  // the text with a number and a length in place of each local name
  std::vector<std::string_view> names;  // local names by number; views of the text
};

// Returns the shape of a text. Texts with equal keys, and their compiled code, differ only in local
// names. Returns nullopt if the text is long or not ASCII, or has a local name without a mark.
std::optional<TextShape> text_shape(std::string_view marked);

// ---- functions in the source ----

// How the generated source calls a function.
enum class TargetKind : uint8_t {
  kOperator,   // text: a format with {} for each operand, such as "{} + {}"
  kInplace,    // like kOperator; the source also assigns the result to the first operand
  kQualified,  // text: a dotted name that starts with torch
  kGlobal,     // text: the preferred name of a new global
};

struct TargetText {
  TargetKind kind;
  std::string text;  // its meaning depends on `kind`
};

// Returns how the source calls a function by torch's rules. Results for operators and built-in
// functions are cached until the process ends. Names of other functions may change, so their
// results are not cached.
const TargetText& describe_target(PyObject* target);

// ---- inputs that are flattened ----

// How a generated function flattens its inputs by a tree spec, as in torch.fx.graph._PyTreeCodeGen.
struct TreeInputs {
  std::vector<std::string> parameters;  // all parameters except `self`
  std::vector<std::string> positional;  // parameters that are positional arguments
  bool has_keywords;                    // whether the spec flattens (args, kwargs), not only args
  std::vector<std::pair<std::string, std::string>> keywords;  // (key, parameter) pairs
  bool builds_outputs;  // whether a spec unflattens the outputs
};

// Returns how a code generator flattens inputs. Returns nullopt if only torch's generator can write
// the source.
std::optional<TreeInputs> read_tree_inputs(PyObject* codegen);

// Returns the `def` line, and the line that flattens inputs into `values` (names with marks).
std::string tree_prologue(const TreeInputs& inputs, const std::vector<std::string>& values);

}  // namespace fxpress::fx
