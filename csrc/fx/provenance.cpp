#include "fx/provenance.h"

#include "fx/symbols.h"
#include "py/calls.h"
#include "py/containers.h"

namespace fxpress::fx {

namespace {

Ref note(const ProvenanceRules& rules, PyObject* info, PyObject* earlier) {
  const Ref attributes = Ref::steal(PyDict_Copy(rules.attributes.get()));
  const Ref action = Ref::steal(PySequence_List(check(dict_get(attributes.get(), names.action))));
  check(PyDict_SetItem(attributes.get(), names.action, action.get()));
  check(PyDict_SetItem(attributes.get(), names.node_info, info));
  check(PyDict_SetItem(attributes.get(), names.from_node, earlier));
  return make_list(1,
                   [&](size_t) { return new_instance(rules.source_type.get(), attributes.get()); });
}

}  // namespace

Ref note_of(const ProvenanceRules& rules, const NotedNode& node) {
  const Ref described = new_instance(
      rules.info_type.get(),
      {{names.name, node.name}, {names.target, node.target}, {names.graph_id, node.graph_id}});
  const Ref earlier =
      node.earlier == nullptr ? Ref::steal(PyList_New(0)) : call(rules.keep.get(), node.earlier);
  return note(rules, described.get(), earlier.get());
}

Ref note_of_none(const ProvenanceRules& rules) {
  const Ref nothing = Ref::steal(PyList_New(0));
  return note(rules, Py_None, nothing.get());
}

PyObject* TargetTexts::of(PyObject* target) {
  const auto text = [&] {
    return PyUnicode_CheckExact(target) ? Ref::borrow(target) : Ref::steal(PyObject_Str(target));
  };
  return texts_.get(target, text).get();
}

Ref Provenance::note(PyObject* name, PyObject* target, PyObject* graph_id, PyObject* earlier) {
  return note_of(rules_,
                 {name, texts_.of(target), graph_id, earlier == Py_None ? nullptr : earlier});
}

}  // namespace fxpress::fx
