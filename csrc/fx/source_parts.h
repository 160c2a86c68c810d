// Handles parts of generated source: local names, functions, and inputs that a tree spec flattens.
#pragma once

#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "py/object.h"

namespace fxpress::fx {

// ---- local names ----

// Precedes each local name in a text under construction. A repr cannot contain it. Graphs with
// attribute names that contain it are left to torch's generator.
constexpr char kLocalMark = '\x01';

std::string without_marks(std::string_view marked);

struct TextShape {
  std::string key;                      // the text with number and length instead of local names
  std::vector<std::string_view> names;  // the local names by number; they point into the text
};

// Returns the shape of a text: texts with equal keys, and their compiled code, differ only in local
// names. Returns nullopt if a word without a mark is the name of a local, or the text is too long.
std::optional<TextShape> text_shape(std::string_view marked);

// ---- functions ----

// How source refers to a function.
enum class TargetKind : uint8_t {
  kOperator,   // a format with one {} for each operand: "{} + {}"
  kInplace,    // like kOperator, followed by an assignment to the first operand
  kQualified,  // a dotted name below torch
  kGlobal,     // an object among the source's globals; text: its preferred name
};

struct TargetText {
  TargetKind kind;
  std::string text;  // see TargetKind
};

// Describes by torch's rules how source refers to a function. Results for operators and built-in
// functions are cached until the process ends. Names of other functions may change, so their
// results are not cached.
const TargetText& describe_target(PyObject* target);

// ---- inputs ----

// The inputs of a function that flattens them by a tree spec, like torch.fx.graph._PyTreeCodeGen.
struct TreeInputs {
  std::vector<std::string> parameters;  // parameters of the function, without `self`
  std::vector<std::string> positional;  // parameters that are flattened by position
  bool has_keywords;                    // whether the spec describes (args, kwargs) or only args
  std::vector<std::pair<std::string, std::string>> keywords;  // (key, parameter) pairs
  bool builds_outputs;                                        // whether a spec builds the outputs
};

// Returns how a code generator flattens inputs, or nullopt when torch's generator has to write the
// code.
std::optional<TreeInputs> read_tree_inputs(PyObject* codegen);

// Returns the `def` line, and the line that flattens the inputs into `values`, marked local names.
std::string tree_prologue(const TreeInputs& inputs, const std::vector<std::string>& values);

}  // namespace fxpress::fx
