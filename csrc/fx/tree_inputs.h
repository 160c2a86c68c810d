// Functions whose inputs are flattened by a tree spec, as torch.fx.graph._PyTreeCodeGen writes
// them.
#pragma once

#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "py/object.h"

namespace fxpress::fx {

struct TreeInputs {
  std::vector<std::string> parameters;  // of the function, without `self`
  std::vector<std::string> positional;  // parameters that are flattened by position
  bool has_keywords;                    // the spec is one of (args, kwargs)
  std::vector<std::pair<std::string, std::string>> keywords;  // key and parameter
  bool builds_outputs;                                        // there is a spec of the outputs
};

// How a code generator flattens inputs. Nothing for one that torch's code must write.
std::optional<TreeInputs> read_tree_inputs(PyObject* codegen);

// The `def` line, and the line that flattens the inputs into `values`, which are marked local names
// (see local_names.h).
std::string tree_prologue(const TreeInputs& inputs, const std::vector<std::string>& values);

}  // namespace fxpress::fx
