// Reads the arguments of a node. torch.fx declares a tuple and a dict, and keeps whatever it is
// given: a list that was assigned to node.args stays a list, and None or a number is taken as well.
#pragma once

#include "fx/symbols.h"

namespace fxpress::fx {

// The positional arguments as a tuple of the caller's own: a list is read as it is now. TypeError
// for anything else, of which torch could not take the items or the length either.
inline Ref args_of(PyObject* node) {
  Ref args = node_field(node, symbols.node_args);
  if (PyTuple_Check(args.get())) return args;
  if (PyList_Check(args.get())) return Ref::steal(PyList_AsTuple(args.get()));
  raise(PyExc_TypeError, "the args of node %R are no tuple but %R", node, Py_TYPE(args.get()));
}

// The keyword arguments; TypeError when they are no dict.
inline Ref kwargs_of(PyObject* node) {
  Ref kwargs = node_field(node, symbols.node_kwargs);
  if (PyDict_Check(kwargs.get())) return kwargs;
  raise(PyExc_TypeError, "the kwargs of node %R are no dict but %R", node, Py_TYPE(kwargs.get()));
}

// A field of a node that is a dict by torch's own bookkeeping (users, inputs); TypeError when
// somebody has put something else there.
inline Ref dict_field(PyObject* node, PyObject* descriptor) {
  Ref dict = node_field(node, descriptor);
  if (PyDict_Check(dict.get())) return dict;
  raise(PyExc_TypeError, "a table of node %R is no dict but %R", node, Py_TYPE(dict.get()));
}

// Nodes are copied only with a tuple and a dict, as torch copies them: AssertionError.
[[noreturn]] inline void raise_not_copied(PyObject* node, const char* field, const char* expected,
                                          PyObject* value) {
  raise(PyExc_AssertionError, "the %s of node %R must be a %s for it to be copied, not %R", field,
        node, expected, Py_TYPE(value));
}

// Returns the value that an output node returns, its first argument. Raises IndexError when it has
// none.
inline Ref returned_value(PyObject* output) {
  const Ref args = args_of(output);
  if (PyTuple_GET_SIZE(args.get()) == 0) {
    raise(PyExc_IndexError, "output node %R has no argument: a graph returns its first one",
          output);
  }
  return Ref::borrow(PyTuple_GET_ITEM(args.get(), 0));
}

}  // namespace fxpress::fx
