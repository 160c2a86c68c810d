// Defines Python objects that the native code uses, and that are looked up once per process.
#pragma once

#include <Python.h>
#include <structmember.h>

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
#define FXPRESS_NAME_AS(name, text) FXPRESS_NAME(name)
#include "fx/attribute_names.def"
#undef FXPRESS_NAME_AS
#undef FXPRESS_NAME
};

extern Symbols symbols;      // never released
extern Names names;          // never released
extern PyObject* no_args;    // an empty tuple
extern PyObject* no_kwargs;  // an empty immutable dict, shared by all nodes without kwargs

// Sets `symbols`, `names`, `no_args` and `no_kwargs`. Called by fxpress._native.initialize().
void initialize_symbols(PyObject* objects);

// Returns a capsule with the tables of the module _native. The module _aten copies them by
// adopt_tables(), which raises RuntimeError if the modules were built from different sources.
Ref make_tables_capsule();
void adopt_tables(PyObject* capsule);

// Returns the address of a field of a torch.fx.Node, by the offset in the field's descriptor.
inline PyObject** field_of(PyObject* node, PyObject* descriptor) {
  const PyMemberDef* field = reinterpret_cast<PyMemberDescrObject*>(descriptor)->d_member;
  return reinterpret_cast<PyObject**>(reinterpret_cast<char*>(node) + field->offset);
}

// Returns whether a torch.fx.Node was erased from its graph.
inline bool is_erased(PyObject* node) {
  return *reinterpret_cast<char*>(field_of(node, symbols.node_erased)) != 0;
}

// Returns a field of a node. If `node` has another type than torch.fx.Node, or the field was never
// set, calls the descriptor, which may raise TypeError or AttributeError.
inline Ref node_field(PyObject* node, PyObject* descriptor) {
  if (Py_IS_TYPE(node, as_type(symbols.node_type))) {
    if (PyObject* value = *field_of(node, descriptor)) return Ref::borrow(value);
  }
  PyObject* const type = reinterpret_cast<PyObject*>(Py_TYPE(node));
  return Ref::steal(Py_TYPE(descriptor)->tp_descr_get(descriptor, node, type));
}
inline void set_node_field(PyObject* node, PyObject* descriptor, PyObject* value) {
  if (Py_IS_TYPE(node, as_type(symbols.node_type))) {
    Py_INCREF(value);
    Py_XDECREF(std::exchange(*field_of(node, descriptor), value));
  } else {
    check(Py_TYPE(descriptor)->tp_descr_set(descriptor, node, value));
  }
}

inline bool is_node(PyObject* object) {
  return is_a(object, symbols.node_type);
}

core::Op parse_op(PyObject* op);
PyObject* op_name(core::Op op);  // borrowed

}  // namespace fxpress::fx
