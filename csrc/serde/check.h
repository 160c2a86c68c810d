// Whether a program's signature and module calls are as torch's verifier wants them: a quick yes.
#pragma once

#include "py/object.h"
#include "serde/graph_values.h"

namespace fxpress::serde {

// A program whose graph is checked elsewhere (GraphValues::is_surely_valid). All borrowed.
struct ProgramCheck {
  PyObject* graph_modules;  // list: every GraphModule in the program
  PyObject* signature;      // ExportGraphSignature
  PyObject* calls;          // list of ModuleCallEntry
  PyObject* state;          // dict: parameters and buffers
  PyObject* constants;      // dict: constants and custom objects
  bool functional;          // operators may not write their arguments

  // True when all invariants hold. False when some may not: then torch's own check decides, and
  // makes the message. Rare cases are left to torch too.
  bool is_surely_valid(const GraphValues& graph) const;
};

// Checks all graphs of the program too, and that no two nodes take the same result of another node.
// The root is the first of the graph modules.
bool is_surely_valid(const ProgramCheck& check);

}  // namespace fxpress::serde
