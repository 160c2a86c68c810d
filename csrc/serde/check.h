// Checks quickly whether a program's signature and module calls meet the rules of torch's verifier.
#pragma once

#include "py/object.h"
#include "serde/graph_values.h"

namespace fxpress::serde {

// The arguments of the check. All references are borrowed.
struct ProgramCheck {
  PyObject* graph_modules;  // list: every GraphModule in the program
  PyObject* signature;      // ExportGraphSignature
  PyObject* calls;          // list of ModuleCallEntry
  PyObject* state;          // dict: parameters and buffers
  PyObject* constants;      // dict: constants and custom objects
  bool functional;          // operators may not write their arguments

  // Whether the signature and the module calls surely match the root graph. False in doubt: the
  // caller then runs torch's verifier, which accepts the program or raises the error.
  bool is_surely_valid(const GraphValues& graph) const;
};

// Like ProgramCheck::is_surely_valid(), but also checks every graph in `graph_modules` (the first
// is the root), and that no two getitem nodes take the same result of a node.
bool is_surely_valid(const ProgramCheck& check);

}  // namespace fxpress::serde
