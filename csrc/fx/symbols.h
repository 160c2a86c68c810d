// Objects of Python that the native code works with, looked up once per process.
#pragma once

#include "core/graph.h"
#include "py/object.h"

namespace fxpress::fx {

struct Symbols {
#define FXPRESS_SYMBOL(name) PyObject* name = nullptr;
#include "fx/symbols.def"
#undef FXPRESS_SYMBOL
};

struct Names {
#define FXPRESS_NAME(name) PyObject* name = nullptr;
#include "fx/attribute_names.def"
#undef FXPRESS_NAME
};

extern Symbols symbols;      // owned references, held until the process ends
extern Names names;          // likewise
extern PyObject* no_args;    // the empty tuple
extern PyObject* no_kwargs;  // an empty immutable dict, shared by every node without kwargs

// Fills the tables; called once by the Python side while it is imported.
void initialize_symbols(PyObject* objects, PyObject* attribute_names);

// A field of a node through its descriptor.
inline Ref node_field(PyObject* node, PyObject* descriptor) {
  PyTypeObject* type = Py_TYPE(descriptor);
  return Ref::steal(
      type->tp_descr_get(descriptor, node, reinterpret_cast<PyObject*>(Py_TYPE(node))));
}
inline void set_node_field(PyObject* node, PyObject* descriptor, PyObject* value) {
  check(Py_TYPE(descriptor)->tp_descr_set(descriptor, node, value));
}

inline bool is_node(PyObject* object) {
  return is_a(object, symbols.node_type);
}

core::Op parse_op(PyObject* op);
PyObject* op_name(core::Op op);  // borrowed

}  // namespace fxpress::fx
