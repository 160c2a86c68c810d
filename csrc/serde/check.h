// A quick check that a program's signature and module calls meet the rules of torch's verifier.
#pragma once

#include "py/object.h"
#include "serde/graph_values.h"

namespace fxpress::serde {

// A program, without its graph (see GraphValues::is_surely_valid). All references are borrowed.
struct ProgramCheck {
  PyObject* graph_modules;  // list: every GraphModule in the program
  PyObject* signature;      // ExportGraphSignature
  PyObject* calls;          // list of ModuleCallEntry
  PyObject* state;          // dict: parameters and buffers
  PyObject* constants;      // dict: constants and custom objects
  bool functional;          // operators may not write their arguments

  // True if all invariants hold. False if one may not, or in rare cases: then torch's own verifier
  // decides and words the error.
  bool is_surely_valid(const GraphValues& graph) const;
};

// Also checks all graphs of the program, and that no two nodes take the same result of another
// node. The root is the first of the graph modules.
bool is_surely_valid(const ProgramCheck& check);

}  // namespace fxpress::serde
