// The encoders of one call share this context: the sink, what the caller gave, the operators, and
// the names of nodes.
#pragma once

#include "fx/symbols.h"
#include "py/object.h"
#include "serde/check.h"
#include "serde/node_names.h"
#include "serde/operators.h"
#include "serde/schema_writer.h"

namespace fxpress::serde {

// The data of a call beside the graph; all borrowed.
struct EncodeContext {
  PyObject* objects;          // dict: custom objects met in the graph, filled while encoding
  PyObject* treespec;         // (TreeSpec) -> str
  const ProgramCheck* check;  // what else has to hold; null: nothing is checked
  bool metadata = true;       // of nodes, or only what they compute
};

struct Encoding {
  SchemaWriter out;
  EncodeContext context;         // what the caller gave
  OperatorTable operators = {};  // of all graphs
  NodeNames names = {};          // of the graph at work
};

// Returns float(value).
inline double real_of(PyObject* value) {
  const double result = PyFloat_AsDouble(value);
  if (result == -1.0 && PyErr_Occurred() != nullptr) throw_python_error();
  return result;
}

}  // namespace fxpress::serde
