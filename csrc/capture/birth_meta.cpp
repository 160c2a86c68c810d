#include "capture/birth_meta.h"

#include <initializer_list>

#include "fx/edited.h"

namespace fxpress::capture {

namespace {

// copy.copy() gives the same object for these.
bool is_atom(PyObject* value) {
  return value == Py_None || PyUnicode_CheckExact(value) || PyLong_CheckExact(value) ||
         PyBool_Check(value) || PyFloat_CheckExact(value) || PyTuple_CheckExact(value);
}

}  // namespace

bool is_set(PyObject* dict, PyObject* key) {
  const Ref value = Ref::borrow(dict_get(dict, key));
  if (!value) return false;
  const int truth = PyObject_IsTrue(value.get());
  check(truth);
  return truth != 0;
}

Ref dict_of_meta(PyObject* node) {
  Ref meta = fx::node_field(node, fx::symbols.node_meta);
  if (!PyDict_Check(meta.get())) raise(PyExc_TypeError, "the meta of %R is no dict", node);
  return meta;
}

BirthMeta::BirthMeta(const BirthRules& rules, PyObject* graph)
    : rules_(rules), graph_id_(Ref::steal(PyLong_FromVoidPtr(graph))) {}

Ref BirthMeta::copied(PyObject* value) const {
  if (is_atom(value)) return Ref::borrow(value);
  if (PyDict_CheckExact(value)) return Ref::steal(PyDict_Copy(value));
  if (PyList_CheckExact(value)) return Ref::steal(PySequence_List(value));
  return Ref::steal(PyObject_CallOneArg(rules_.copy.get(), value));
}

Ref BirthMeta::note(PyObject* node, PyObject* meta) {
  const Ref name = fx::node_field(node, fx::symbols.node_name);
  const Ref target = fx::node_field(node, fx::symbols.node_target);
  const Ref earlier = Ref::borrow(dict_get(meta, fx::names.from_node));
  return fx::note_of(rules_.provenance,
                     {name.get(), texts_.of(target.get()), graph_id_.get(), earlier.get()});
}

void BirthMeta::add_sequence(PyObject* meta, PyObject* current) const {
  const Ref zero = Ref::steal(PyLong_FromLong(0));
  const Ref depth = Ref::borrow(dict_get(current, fx::names.in_grad_fn));
  const int is_backward = depth ? PyObject_RichCompareBool(depth.get(), zero.get(), Py_GT) : 0;
  check(is_backward);
  Ref number;
  if (is_backward != 0) {
    const Ref numbers = Ref::borrow(dict_get(current, fx::names.grad_fn_seq_nr));
    if (!numbers) raise(PyExc_KeyError, "%U", fx::names.grad_fn_seq_nr);
    number = Ref::steal(PySequence_GetItem(numbers.get(), -1));
  } else if (rules_.sequence.get() == Py_None) {
    number = Ref::borrow(dict_get(current, fx::names.seq_nr));
  } else {
    number = Ref::borrow(rules_.sequence.get());
  }
  if (number && number.get() != Py_None) {
    check(PyDict_SetItem(meta, fx::names.seq_nr, number.get()));
  }
}

Ref BirthMeta::of(PyObject* node) {
  const Ref own = dict_of_meta(node);
  const bool has_own = PyDict_GET_SIZE(own.get()) > 0;
  PyObject* const current = has_own ? own.get() : rules_.outer.get();
  Ref meta = Ref::steal(PyDict_New());
  const auto set = [&](PyObject* key, PyObject* value) {
    check(PyDict_SetItem(meta.get(), key, value));
  };
  if (is_set(current, fx::names.stack_trace)) {
    const Ref trace = Ref::borrow(dict_get(current, fx::names.stack_trace));
    if (!trace) fx::raise_edited("the capture");
    set(fx::names.stack_trace, trace.get());
    const int is_accumulated = PySequence_Contains(trace.get(), rules_.marker.get());
    check(is_accumulated);
    if (is_accumulated != 0) {
      set(fx::names.is_gradient_acc, Py_True);
      set(fx::names.autograd_backward, Py_True);
    }
  }
  for (Py_ssize_t i = 0; i < PyTuple_GET_SIZE(rules_.fields.get()); ++i) {
    PyObject* field = PyTuple_GET_ITEM(rules_.fields.get(), i);
    if (has_own && PyUnicode_Compare(field, fx::names.from_node) == 0) {
      set(field, note(node, own.get()).get());
    } else if (const Ref value = Ref::borrow(dict_get(current, field))) {
      set(field, copied(value.get()).get());
    }
  }
  add_sequence(meta.get(), current);
  check(PyDict_Update(meta.get(), rules_.overlay.get()));
  if (is_set(current, fx::names.autograd_backward)) set(fx::names.autograd_backward, Py_True);
  for (PyObject* key : {fx::names.val, fx::names.example_value, fx::names.unbacked_bindings}) {
    if (PyObject* value = dict_get(own.get(), key)) set(key, value);
  }
  return meta;
}

}  // namespace fxpress::capture
