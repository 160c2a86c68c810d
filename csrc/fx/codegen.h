// Generates the Python source of a graph: the text of torch.fx.graph.CodeGen and _PyTreeCodeGen.
#pragma once

#include <optional>

#include "py/object.h"

namespace fxpress::fx {

struct PythonSource {
  Ref text;                   // str: the entire function
  Ref globals;                // dict: global name in the text -> object
  Ref line_numbers;           // dict: line -> position of its node, or None
  Py_ssize_t prologue_start;  // line of `def` in the text
  Ref shape;                  // bytes: equal for texts that differ only in local names of equal
                              // length and so can share compiled code; None: not shareable
  Ref locals;                 // tuple of str: the local names, by their number in the shape
};

// nullopt for a graph that torch's generator has to write: its generator is of another class or
// customized, or it has type annotations or arguments of types that need globals.
std::optional<PythonSource> generate_source(PyObject* graph);

}  // namespace fxpress::fx
