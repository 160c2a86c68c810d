// Holds Python objects that only the engine uses, looked up once per process. Names, and objects
// that other components use too, are in the tables of fx.
#pragma once

#include "fx/symbols.h"
#include "py/object.h"

namespace fxpress::engine {

using fx::is_node;
using fx::names;

struct Symbols {
#define FXPRESS_SYMBOL(name) PyObject* name = nullptr;
#include "engine/symbols.def"
#undef FXPRESS_SYMBOL
};

extern Symbols symbols;  // owned references, held until the process ends

// Fills `symbols`, and adopts `tables` of fx; Python code calls it when it imports this module.
void initialize_symbols(PyObject* objects, PyObject* tables);

// Returns a field of a node, borrowed from the node; null if the field was never set.
inline PyObject* node_field(PyObject* node, PyObject* descriptor) {
  return *fx::field_of(node, descriptor);
}

}  // namespace fxpress::engine
