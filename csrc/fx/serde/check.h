// Whether an exported program keeps the invariants that torch's verifier checks: a quick yes.
#pragma once

#include "fx/py.h"
#include "fx/serde/operators.h"

namespace fxpress::fx::serde {

struct CheckedProgram {
  PyObject* graph_modules;  // list: every GraphModule in the program, its own first
  PyObject* signature;      // ExportGraphSignature
  PyObject* calls;          // list of ModuleCallEntry
  PyObject* state;          // dict: parameters and buffers
  PyObject* constants;      // dict: constants and custom objects
  bool functional;          // operators may not write their arguments
};

// True when all invariants hold. False: some may not, and torch's own check has the last word, and
// the message. What is rare is left to it too.
bool is_surely_valid(const CheckedProgram& program);

}  // namespace fxpress::fx::serde
