// Generates the same Python source as torch.fx.graph.CodeGen and _PyTreeCodeGen.
#pragma once

#include <optional>

#include "py/object.h"

namespace fxpress::fx {

struct PythonSource {
  Ref text;                   // str: the complete source
  Ref globals;                // dict from names of globals in the source to objects
  Ref line_numbers;           // dict from lines to indices of nodes in the graph, or None
  Py_ssize_t prologue_start;  // line of the `def` in the source
  // bytes: a key for a cache of compiled code. Sources with equal keys differ only in local names,
  // and these have equal lengths. None: the compiled code cannot be shared.
  Ref shape;
  Ref locals;  // tuple of str: local names, by their number in `shape`
};

// Returns nullopt if only torch's generator can write the source: the graph has a customized
// generator, type annotations, or arguments whose types need globals.
std::optional<PythonSource> generate_source(PyObject* graph);

}  // namespace fxpress::fx
