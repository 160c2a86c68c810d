#include "fx/new_graph.h"

#include "core/check.h"
#include "fx/symbols.h"
#include "py/containers.h"
#include "py/instance_dict.h"

namespace fxpress::fx {

namespace {

Ref fresh(PyObject* value);

void set(PyObject* object, PyObject* name, PyObject* value) {
  check(PyObject_GenericSetAttr(object, name, value));
}

bool is_part(PyObject* value) {
  for (Py_ssize_t i = 0; i < PyTuple_GET_SIZE(symbols.graph_part_types); ++i) {
    PyObject* type = PyTuple_GET_ITEM(symbols.graph_part_types, i);
    if (reinterpret_cast<PyObject*>(Py_TYPE(value)) == type) return true;
  }
  return false;
}

Ref fresh_part(PyObject* original) {
  Ref part = new_object(reinterpret_cast<PyObject*>(Py_TYPE(original)));
  const Ref attributes = instance_dict(original);
  PyObject* name = nullptr;
  PyObject* value = nullptr;
  for (Py_ssize_t position = 0; PyDict_Next(attributes.get(), &position, &name, &value) != 0;) {
    set(part.get(), name, fresh(value).get());
  }
  return part;
}

// Containers are empty, and parts have nothing but such attributes: the table of symbols is asked
// for no others.
Ref fresh(PyObject* value) {
  if (PyDict_CheckExact(value)) return Ref::steal(PyDict_New());
  if (PyDict_Check(value)) return Ref::steal(PyObject_CallMethodNoArgs(value, names.copy));
  if (PySet_CheckExact(value)) return Ref::steal(PySet_New(nullptr));
  return is_part(value) ? fresh_part(value) : Ref::borrow(value);
}

// The node that stands before the first node and behind the last one.
Ref fresh_root(PyObject* original, PyObject* graph) {
  PyTypeObject* type = as_type(symbols.node_type);
  Ref root = Ref::steal(type->tp_new(type, no_args, nullptr));
  const Ref name = node_field(original, symbols.node_name);
  const Ref op = node_field(original, symbols.node_op);
  const Ref target = node_field(original, symbols.node_target);
  const Ref init = Ref::steal(PyTuple_Pack(5, graph, name.get(), op.get(), target.get(), Py_None));
  check(as_type(symbols.node_base_type)->tp_init(root.get(), init.get(), nullptr));
  set_node_field(root.get(), symbols.node_args, no_args);
  set_node_field(root.get(), symbols.node_kwargs, no_kwargs);
  return root;
}

}  // namespace

Ref new_graph() {
  // Another Graph.__init__, or one with attributes that are not known, gets its call.
  if (_PyType_Lookup(as_type(symbols.graph_type), names.dunder_init) != symbols.graph_init) {
    return Ref::steal(PyObject_CallNoArgs(symbols.graph_type));
  }
  Ref graph = new_object(symbols.graph_type);
  Ref root;
  PyObject* name = nullptr;
  PyObject* value = nullptr;
  for (Py_ssize_t position = 0;
       PyDict_Next(symbols.graph_init_body, &position, &name, &value) != 0;) {
    if (name == names.root) {
      root = fresh_root(value, graph.get());
      set(graph.get(), name, root.get());
    } else if (name == names.insert) {
      FXPRESS_CHECK(root, "a graph has its way to insert nodes before it has its root");
      set(graph.get(), name, get_attr(root.get(), names.prepend).get());
    } else {
      set(graph.get(), name, fresh(value).get());
    }
  }
  return graph;
}

}  // namespace fxpress::fx
