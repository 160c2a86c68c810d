// Generates the Python source of a graph: the text of torch.fx.graph.CodeGen and _PyTreeCodeGen.
#pragma once

#include <optional>

#include "py/object.h"

namespace fxpress::fx {

struct PythonSource {
  Ref text;                   // str: the entire function
  Ref globals;                // dict: global name in the text -> object
  Ref line_numbers;           // dict: line -> position of its node in the graph, or None
  Py_ssize_t prologue_start;  // line of `def` in the text
  Ref shape;                  // bytes: a key of compiled code. Texts of one shape differ only in
                              // local names of equal length. None: the code is not shareable
  Ref locals;                 // tuple of str: the local names, by their number in the shape
};

// Returns nullopt for a graph that torch's generator has to write: its generator is customized or
// of another class, or it has type annotations or arguments whose types need globals.
std::optional<PythonSource> generate_source(PyObject* graph);

}  // namespace fxpress::fx
