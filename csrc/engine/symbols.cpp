#include "engine/symbols.h"

#include <structmember.h>

namespace fxpress::engine {

Symbols symbols;
Names names;
NodeLayout node_layout;

namespace {

PyMemberDef* member(PyObject* descriptor) {
  if (!Py_IS_TYPE(descriptor, &PyMemberDescr_Type)) {
    raise(PyExc_TypeError, "torch.fx.Node keeps a field as %R, not as a member", descriptor);
  }
  return reinterpret_cast<PyMemberDescrObject*>(descriptor)->d_member;
}

Py_ssize_t object_offset(PyObject* descriptor) {
  const PyMemberDef* field = member(descriptor);
  if (field->type != T_OBJECT && field->type != T_OBJECT_EX) {
    raise(PyExc_TypeError, "field %s of torch.fx.Node is no object", field->name);
  }
  return field->offset;
}

Py_ssize_t bool_offset(PyObject* descriptor) {
  const PyMemberDef* field = member(descriptor);
  if (field->type != T_BOOL) {
    raise(PyExc_TypeError, "field %s of torch.fx.Node is no bool", field->name);
  }
  return field->offset;
}

}  // namespace

void initialize_symbols(PyObject* objects, PyObject* attribute_names) {
#define FXPRESS_SYMBOL(name) fill_slot(symbols.name, objects, #name);
#include "engine/symbols.def"
#undef FXPRESS_SYMBOL
#define FXPRESS_NAME(name)                       \
  fill_slot(names.name, attribute_names, #name); \
  PyUnicode_InternInPlace(&names.name);
#include "engine/names.def"
#undef FXPRESS_NAME
  node_layout.args = object_offset(symbols.node_args);
  node_layout.kwargs = object_offset(symbols.node_kwargs);
  node_layout.op = object_offset(symbols.node_op);
  node_layout.target = object_offset(symbols.node_target);
  node_layout.next = object_offset(symbols.node_next);
  node_layout.input_nodes = object_offset(symbols.node_input_nodes);
  node_layout.erased = bool_offset(symbols.node_erased);
}

}  // namespace fxpress::engine
