// Objects of Python that the engine works with, looked up once per process.
#pragma once

#include <cstddef>

#include "py/object.h"

namespace fxpress::engine {

struct Symbols {
#define FXPRESS_SYMBOL(name) PyObject* name = nullptr;
#include "engine/symbols.def"
#undef FXPRESS_SYMBOL
};

struct Names {
#define FXPRESS_NAME(name) PyObject* name = nullptr;
#include "engine/names.def"
#undef FXPRESS_NAME
};

// Where a node's fields lie in the object, read from the type's member descriptors: torch may move
// them with any version, and says so there.
struct NodeLayout {
  Py_ssize_t args = 0;         // _args
  Py_ssize_t kwargs = 0;       // _kwargs
  Py_ssize_t op = 0;           // op
  Py_ssize_t target = 0;       // target
  Py_ssize_t next = 0;         // _next
  Py_ssize_t input_nodes = 0;  // _input_nodes
  Py_ssize_t erased = 0;       // _erased; a bool
};

extern Symbols symbols;  // owned references, held until the process ends
extern Names names;      // likewise, interned
extern NodeLayout node_layout;

// Fills the tables; called once by the Python side while it is imported.
void initialize_symbols(PyObject* objects, PyObject* attribute_names);

// A field of a node: borrowed from the node, null when it was never set.
inline PyObject* node_field(PyObject* node, Py_ssize_t offset) {
  return *reinterpret_cast<PyObject**>(reinterpret_cast<char*>(node) + offset);
}

inline bool is_node(PyObject* object) {
  return is_a(object, symbols.node_type);
}

}  // namespace fxpress::engine
