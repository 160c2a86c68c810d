#include "fx/writer.h"

#include <algorithm>
#include <string>

#include "core/check.h"
#include "fx/symbols.h"
#include "py/calls.h"
#include "py/containers.h"
#include "py/instance_dict.h"

namespace fxpress::fx {

using core::Op;

namespace {

Ref fresh(PyObject* value);

bool is_part(PyObject* value) {
  return std::ranges::any_of(items_of(symbols.graph_part_types),
                             [&](PyObject* type) { return Py_IS_TYPE(value, as_type(type)); });
}

// Copies an object that is a part of a graph. Its type is in symbols.graph_part_types.
Ref fresh_part(PyObject* original) {
  Ref part = new_object(reinterpret_cast<PyObject*>(Py_TYPE(original)));
  const Ref attributes = instance_dict(original);
  for (const auto& [name, value] : DictRange(attributes.get())) {
    set_attribute(part.get(), name, fresh(value).get());
  }
  return part;
}

// Copies `value`, an attribute of an empty graph or of its parts. A copied container is empty.
Ref fresh(PyObject* value) {
  if (PyDict_CheckExact(value)) return Ref::steal(PyDict_New());
  if (PyDict_Check(value)) return call_method(value, names.copy);
  if (PySet_CheckExact(value)) return Ref::steal(PySet_New(nullptr));
  return is_part(value) ? fresh_part(value) : Ref::borrow(value);
}

// Creates the root node, which is before the first and after the last node of the graph.
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
  // Other code may replace Graph.__init__. graph_init is None if __init__ sets unknown attributes.
  if (_PyType_Lookup(as_type(symbols.graph_type), names.dunder_init) != symbols.graph_init) {
    return call(symbols.graph_type);
  }
  Ref graph = new_object(symbols.graph_type);
  Ref root;
  for (const auto& [name, value] : DictRange(symbols.graph_init_body)) {
    if (name == names.root) {
      root = fresh_root(value, graph.get());
      set_attribute(graph.get(), name, root.get());
    } else if (name == names.insert) {
      FXPRESS_CHECK(root, "a graph has an insertion point, but not a root");
      set_attribute(graph.get(), name, get_attr(root.get(), names.prepend).get());
    } else {
      set_attribute(graph.get(), name, fresh(value).get());
    }
  }
  return graph;
}

GraphWriter::GraphWriter(NameWriter& name_writer) : GraphWriter(name_writer, new_graph()) {}

GraphWriter::GraphWriter(NameWriter& name_writer, Ref graph)
    : names_(name_writer), graph_(std::move(graph)) {
  if (is_true(get_attr(graph_.get(), names.len).get())) {
    raise(PyExc_ValueError, "the graph to write into is not empty");
  }
  root_ = get_attr(graph_.get(), names.root);
  const Ref graph_namespace = get_attr(graph_.get(), names.graph_namespace);
  obj_to_name_ = get_attr(graph_namespace.get(), names.obj_to_name);
  used_names_ = get_attr(graph_namespace.get(), names.used_names);
  base_count_ = get_attr(graph_namespace.get(), names.base_count);
  const Ref lookup = get_attr(graph_.get(), names.lookup_table);
  lookup_table_ = get_attr(lookup.get(), names.table);
  FXPRESS_CHECK(PyDict_Check(obj_to_name_.get()) && PyDict_Check(base_count_.get()) &&
                    PyDict_Check(lookup_table_.get()) && PyAnySet_Check(used_names_.get()),
                "expected dicts and a set as the tables of torch's Graph");
  names_.begin_graph();
}

Ref GraphWriter::copy_meta(PyObject* node) {
  const Ref meta = node_field(node, symbols.node_meta);
  if (PyDict_CheckExact(meta.get())) return Ref::steal(PyDict_Copy(meta.get()));
  return Ref::steal(PyObject_CallMethod(meta.get(), "copy", nullptr));
}

PyObject* GraphWriter::create(const NewNode& node, Ref args, Ref kwargs,
                              std::span<PyObject* const> inputs, Ref meta) {
  const core::StringId id = node.name.valid() ? node.name : names_.table().create(node.candidate);
  PyObject* name = names_.string(id);

  // The next lines replace Node.__init__, which would copy the arguments again.
  PyTypeObject* type = as_type(symbols.node_type);
  const Ref created = Ref::steal(type->tp_new(type, no_args, nullptr));
  PyObject* self = created.get();
  PyObject* const init[] = {graph_.get(), name, op_name(node.op), node.target, node.type_expr};
  if (!init_args_ || Py_REFCNT(init_args_.get()) != 1) init_args_ = Ref::steal(PyTuple_New(5));
  for (Py_ssize_t i = 0; i < 5; ++i) {
    Py_INCREF(init[i]);
    PyObject* previous = PyTuple_GET_ITEM(init_args_.get(), i);
    PyTuple_SET_ITEM(init_args_.get(), i, init[i]);
    Py_XDECREF(previous);
  }
  check(as_type(symbols.node_base_type)->tp_init(self, init_args_.get(), nullptr));
  set_node_field(self, symbols.node_args, args.get());
  set_node_field(self, symbols.node_kwargs, kwargs.get());
  if (meta) set_node_field(self, symbols.node_meta, meta.get());

  if (!inputs.empty()) {
    const Ref input_nodes = node_field(self, symbols.node_input_nodes);
    for (PyObject* input : inputs) {
      check(PyDict_SetItem(input_nodes.get(), input, Py_None));
      const Ref users = node_field(input, symbols.node_users);
      check(PyDict_SetItem(users.get(), self, Py_None));
    }
  }

  if (insert_) {
    call(insert_.get(), self);
  } else {
    call(symbols.node_prepend, root_, self);
  }
  register_name(self, name);
  ++named_;
  register_lookup(self, node.op, node.target);
  ++length_;
  return self;
}

void GraphWriter::register_name(PyObject* node, PyObject* name) {
  check(PyDict_SetItem(obj_to_name_.get(), node, name));
  check(PySet_Add(used_names_.get(), name));
}

void GraphWriter::register_lookup(PyObject* node, Op op, PyObject* target) {
  PyObject* bucket = nullptr;
  if (op == Op::kCallFunction) {
    const auto key = reinterpret_cast<uintptr_t>(target);
    const auto [slot, added] =
        function_buckets_.insert(key, static_cast<uint32_t>(buckets_.size()));
    if (added) buckets_.push_back(lookup_bucket(op, target));
    bucket = buckets_[slot].get();
  } else {
    Ref& known = op_buckets_[static_cast<size_t>(op)];
    if (!known) known = lookup_bucket(op, Py_None);
    bucket = known.get();
  }
  check(PyDict_SetItem(bucket, node, Py_None));
}

// Equal functions that are not identical, such as bound methods, share a dict, as in torch.
Ref GraphWriter::lookup_bucket(Op op, PyObject* target) {
  const Ref key = Ref::steal(PyTuple_Pack(2, op_name(op), target));
  const Ref fresh = Ref::steal(PyDict_New());
  // The hash of an operator runs Python code, so the key is hashed only once.
  return Ref::borrow(check(PyDict_SetDefault(lookup_table_.get(), key.get(), fresh.get())));
}

NewNode GraphWriter::output_node() {
  return {Op::kOutput, symbols.output, names_.candidate_for_target(symbols.output), Py_None};
}

PyObject* GraphWriter::getitem(PyObject* value, size_t index, Ref meta, core::StringId candidate) {
  if (!candidate.valid()) candidate = names_.candidate_for_target(symbols.getitem);
  const Ref position = Ref::steal(PyLong_FromSize_t(index));
  Ref args = Ref::steal(PyTuple_Pack(2, value, position.get()));
  const NewNode node = {Op::kCallFunction, symbols.getitem, candidate, Py_None};
  return create(node, std::move(args), Ref::borrow(no_kwargs), {&value, 1}, std::move(meta));
}

PyObject* GraphWriter::output_of(std::span<PyObject* const> values, bool as_tuple) {
  const Ref value = as_tuple ? new_tuple(values) : Ref::borrow(values[0]);
  Ref args = Ref::steal(PyTuple_Pack(1, value.get()));
  return create(output_node(), std::move(args), Ref::borrow(no_kwargs), values, {});
}

void GraphWriter::rename(PyObject* node, PyObject* name) {
  set_node_field(node, symbols.node_name, name);
  register_name(node, name);
}

void GraphWriter::take_name(core::StringId name) {
  check(PySet_Add(used_names_.get(), names_.string(name)));
}

void GraphWriter::finish() {
  for (core::StringId base : names_.table().changed_bases()) {
    check(PyDict_SetItem(base_count_.get(), names_.string(base), names_.count(base).get()));
  }
  names_.table().forget_changes();
  used_ = PySet_GET_SIZE(used_names_.get());
  const Py_ssize_t before = PyLong_AsSsize_t(get_attr(graph_.get(), names.len).get());
  if (before == -1 && PyErr_Occurred() != nullptr) throw_python_error();
  const Ref length = Ref::steal(PyLong_FromSsize_t(before + length_));
  check(PyObject_SetAttr(graph_.get(), names.len, length.get()));
  length_ = 0;
}

void GraphWriter::resume() {
  insert_ = get_attr(graph_.get(), names.insert);
  const Ref prepend = get_attr(symbols.node_type, names.prepend);
  if (PyMethod_Check(insert_.get()) && PyMethod_GET_SELF(insert_.get()) == root_.get() &&
      PyMethod_GET_FUNCTION(insert_.get()) == prepend.get()) {
    insert_ = {};
  }
  const Py_ssize_t added = PyDict_GET_SIZE(obj_to_name_.get()) - named_;
  if (PySet_GET_SIZE(used_names_.get()) == used_ && added == 0) return;
  if (added > 0) take_names_of_added_nodes();
  if (PySet_GET_SIZE(used_names_.get()) != used_ + added) take_all_names();
  named_ = PyDict_GET_SIZE(obj_to_name_.get());
}

void GraphWriter::take(PyObject* name) {
  const core::StringId id = names_.candidate(name);
  if (!names_.table().is_used(id)) names_.table().create(id);
}

void GraphWriter::take_names_of_added_nodes() {
  const Ref values = Ref::steal(PyObject_CallMethod(obj_to_name_.get(), "values", nullptr));
  const Ref backwards = Ref::steal(PyObject_CallMethod(values.get(), "__reversed__", nullptr));
  std::vector<Ref> added;  // last name first
  while (static_cast<Py_ssize_t>(added.size()) + named_ < PyDict_GET_SIZE(obj_to_name_.get())) {
    added.push_back(Ref::steal(PyIter_Next(backwards.get())));
  }
  for (auto name = added.rbegin(); name != added.rend(); ++name) take(name->get());
}

// Adds all names in used_names_ to names_, because other code has renamed nodes or created names
// without nodes. Adds short names first, so that the last number of each base name is the highest.
void GraphWriter::take_all_names() {
  const Ref all = Ref::steal(PySequence_List(used_names_.get()));
  const auto rank = [](PyObject* name) {
    return std::pair(PyUnicode_GET_LENGTH(name), std::string(utf8(name)));
  };
  std::vector<PyObject*> fresh;
  for (PyObject* name : items_of(all.get())) {
    if (!names_.table().is_used(names_.candidate(name))) fresh.push_back(name);
  }
  std::sort(fresh.begin(), fresh.end(),
            [&](PyObject* a, PyObject* b) { return rank(a) < rank(b); });
  for (PyObject* name : fresh) take(name);
}

}  // namespace fxpress::fx
