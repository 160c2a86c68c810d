// Checks quickly whether a program's signature and module calls meet the rules of torch's verifier.
#pragma once

#include "py/object.h"
#include "serde/graph_values.h"

namespace fxpress::serde {

// A program to check. All references are borrowed.
struct ProgramCheck {
  PyObject* graph_modules;  // list: every GraphModule in the program
  PyObject* signature;      // ExportGraphSignature
  PyObject* calls;          // list of ModuleCallEntry
  PyObject* state;          // dict: parameters and buffers
  PyObject* constants;      // dict: constants and custom objects
  bool functional;          // if true, operators must not write their arguments

  // Whether the signature and the module calls surely match the root graph. If it returns false,
  // the caller runs torch's verifier, which accepts the program or raises the error.
  bool is_surely_valid(const GraphValues& graph) const;
};

// Whether the root graph (the first of `graph_modules`) passes check.is_surely_valid(), all graphs
// pass GraphValues::is_surely_valid(), and no two getitem users of a node have the same index.
bool is_surely_valid(const ProgramCheck& check);

}  // namespace fxpress::serde
