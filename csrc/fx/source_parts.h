// Parts of generated source: local names, functions, and inputs that are flattened by a tree spec.
#pragma once

#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "py/object.h"

namespace fxpress::fx {

// ---- local names ----

// Stands before every local name in a text under construction. It cannot be part of a repr, and
// attribute names that contain it are left to torch.
constexpr char kLocalMark = '\x01';

// The text as it is meant.
std::string without_marks(std::string_view marked);

struct TextShape {
  std::string key;                      // numbers and lengths in place of the local names
  std::vector<std::string_view> names;  // the local names by number; they point into the text
};

// Texts of equal key mean the same up to their local names, and so does the code that they compile
// to. Nothing for a text in which a local name says more than which local is meant, or which is
// longer than is worth remembering.
std::optional<TextShape> text_shape(std::string_view marked);

// ---- functions ----

// The ways in which source refers to a function.
enum class TargetKind : uint8_t {
  kOperator,   // a format with one {} for each operand: "{} + {}"
  kInplace,    // the same, followed by an assignment of the first operand
  kQualified,  // a dotted name below torch
  kGlobal,     // an object among the source's globals; text: its preferred name
};

struct TargetText {
  TargetKind kind;   // how to read the text
  std::string text;  // see TargetKind
};

// Applies torch's rules once per function: the answers for operators and built-in functions are
// kept for the rest of the process, others (whose names may change) are looked up each time.
const TargetText& describe_target(PyObject* target);

// ---- inputs ----

// The inputs of a function that flattens them by a tree spec, as torch.fx.graph._PyTreeCodeGen
// writes it.
struct TreeInputs {
  std::vector<std::string> parameters;  // of the function, without `self`
  std::vector<std::string> positional;  // parameters that are flattened by position
  bool has_keywords;                    // the spec is one of (args, kwargs)
  std::vector<std::pair<std::string, std::string>> keywords;  // key and parameter
  bool builds_outputs;                                        // there is a spec of the outputs
};

// How a code generator flattens inputs. Nothing for one that torch's code must write.
std::optional<TreeInputs> read_tree_inputs(PyObject* codegen);

// The `def` line, and the line that flattens the inputs into `values`, which are marked local
// names.
std::string tree_prologue(const TreeInputs& inputs, const std::vector<std::string>& values);

}  // namespace fxpress::fx
