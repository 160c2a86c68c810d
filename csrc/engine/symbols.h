// Defines Python objects that only the engine uses, and that are looked up once per process.
// Objects that several components use are in fx/symbols.h.
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

extern Symbols symbols;  // never released

// Sets `symbols`, and calls fx::adopt_tables(tables). Python code calls this after importing _aten.
void initialize_symbols(PyObject* objects, PyObject* tables);

// Returns a field of a node, borrowed; null if the field was never set.
inline PyObject* node_field(PyObject* node, PyObject* descriptor) {
  return *fx::field_of(node, descriptor);
}

}  // namespace fxpress::engine
