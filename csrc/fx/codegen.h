// Python source of a graph: the text that torch.fx.graph.CodeGen and _PyTreeCodeGen write.
#pragma once

#include <optional>

#include "py/object.h"

namespace fxpress::fx {

struct PythonSource {
  Ref text;                   // str: the whole function
  Ref globals;                // dict: what the text refers to by name
  Ref line_numbers;           // dict: line -> position of the node it comes from, or None
  Py_ssize_t prologue_start;  // line of the text on which `def` stands
  Ref shape;                  // bytes: equal for texts that differ in local names of one length
                              // only, so that one compiled code serves both; None where none does
  Ref locals;                 // tuple of str: the local names, by their number in the shape
};

// Nothing when the graph has what only torch's own generator writes: a generator of another class
// or one that was customized, type annotations, arguments of types that need their own globals.
std::optional<PythonSource> generate_source(PyObject* graph);

}  // namespace fxpress::fx
