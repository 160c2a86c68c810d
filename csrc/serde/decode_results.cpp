#include "serde/decode_results.h"

#include "fx/symbols.h"
#include "py/containers.h"
#include "serde/scalars.h"
#include "serde/symbols.h"

namespace fxpress::serde {

using core::Op;
void ResultDecoder::name_node(PyObject* node, std::string_view name) {
  Defined& entry = graphs_.current().defined(name);
  if (entry.node) {
    raise(symbols.serialize_error, "Node %U has already been deserialized before.",
          new_text(name).get());
  }
  const Ref wanted = new_text(name);
  const Ref now = fx::node_field(node, fx::symbols.node_name);
  if (PyUnicode_Compare(now.get(), wanted.get()) != 0) {
    fx::set_node_field(node, fx::symbols.node_name, wanted.get());
  }
  entry.node = Ref::borrow(node);
  set_value(node, values_.value_of(entry, name));
}

bool ResultDecoder::returns_itself(const Value& node) const {
  const Value& single = file_.field(node, Field::Node_is_hop_single_tensor_return);
  return single.kind != ValueKind::kBool || single.integer != 0;
}

void ResultDecoder::set_value(PyObject* node, PyObject* value) {
  const Ref meta = fx::node_field(node, fx::symbols.node_meta);
  check(PyDict_SetItem(meta.get(), fx::names.val, value));
}

void ResultDecoder::results(const Value& value, const Target& target, PyObject* node,
                            const NodeMetadata& metadata) {
  auto parts = file_.children(file_.field(value, Field::Node_outputs));
  if (parts.empty()) {  // nothing, or of a graph that returns nothing an empty tuple
    if (target.kind == Target::Kind::kHigherOrder) set_value(node, fx::no_args);
    return;
  }
  if (parts.size() == 1) {
    const Field kind = file_.tag(parts[0]);
    if (kind == Field::Argument_as_none) {
      set_value(node, Py_None);
      return name_unused(node);
    }
    if (target.kind != Target::Kind::kHigherOrder || returns_itself(value)) {
      if (const auto name = file_.name_in(parts[0])) return name_node(node, *name);
      const Value& content = file_.content(parts[0]);
      if (content.kind != ValueKind::kList) {
        raise(symbols.serialize_error, "the result of a node has no name");
      }
      parts = file_.children(content);
    }
  }
  multiple_results(parts, node, metadata);
}

void ResultDecoder::multiple_results(std::span<const Value> parts, PyObject* node,
                                     const NodeMetadata& metadata) {
  const Ref values = take_apart(node, parts, metadata);
  set_value(node, Ref::steal(PyList_AsTuple(values.get())).get());
  const Ref name = fx::node_field(node, fx::symbols.node_name);
  graphs_.current().defined(utf8(name.get())).node = Ref::borrow(node);
}

// Adds a node for each of several results; returns a list of their values.
Ref ResultDecoder::take_apart(PyObject* node, std::span<const Value> parts,
                              const NodeMetadata& metadata) {
  Ref values = Ref::steal(PyList_New(0));
  for (size_t i = 0; i < parts.size(); ++i) {
    check(PyList_Append(values.get(), take(node, i, parts[i], metadata).get()));
  }
  return values;
}

PyObject* ResultDecoder::getitem(PyObject* node, size_t index, core::StringId candidate) {
  const Ref position = Ref::steal(PyLong_FromSize_t(index));
  Ref args = Ref::steal(PyTuple_Pack(2, node, position.get()));
  const fx::NewNode made{Op::kCallFunction, fx::symbols.getitem, candidate, Py_None};
  return graphs_.current().writer().create(made, std::move(args), Ref::borrow(fx::no_kwargs),
                                           {&node, 1}, {});
}

Ref ResultDecoder::take(PyObject* node, size_t index, const Value& part,
                        const NodeMetadata& metadata) {
  const core::Budget::Level level(*file_.context.budget, "the results of a node");
  file_.charge(kNodeBytes);
  if (const auto name = file_.name_in(part)) {
    PyObject* taken = getitem(node, index, graphs_.current().candidate(*name));
    name_node(taken, *name);
    const Ref meta = fx::node_field(taken, fx::symbols.node_meta);
    metadata_.add(metadata, meta.get());
    return Ref::borrow(dict_get(meta.get(), fx::names.val));
  }
  const bool is_argument = Decoding::is_argument(part);
  if (is_argument && file_.tag(part) == Field::Argument_as_none) {
    PyObject* taken = getitem(node, index, graphs_.current().candidate("as_none"));
    set_value(taken, Py_None);
    metadata_.add(metadata, fx::node_field(taken, fx::symbols.node_meta).get());
    return Ref::borrow(Py_None);
  }
  if (is_argument && file_.content(part).kind == ValueKind::kList) {
    PyObject* taken =
        getitem(node, index, graphs_.current().names().candidate_for_target(fx::symbols.getitem));
    Ref values = take_apart(taken, file_.children(file_.content(part)), metadata);
    metadata_.add(metadata, fx::node_field(taken, fx::symbols.node_meta).get());
    set_value(taken, values.get());
    return values;
  }
  raise(symbols.serialize_error, "result %zu of a node has no name", index);
}

// A node without a result gives up the name that it was made with.
void ResultDecoder::name_unused(PyObject* node) {
  fx::NameWriter& writer = graphs_.current().names();
  const Ref target = fx::node_field(node, fx::symbols.node_target);
  std::string wanted(writer.text(writer.candidate_for_target(target.get())));
  wanted += "_unused";
  const Ref now = fx::node_field(node, fx::symbols.node_name);
  if (utf8(now.get()) == wanted) return;
  PyObject* name = writer.string(writer.table().create(writer.intern(wanted)));
  graphs_.current().writer().rename(node, name);
}

}  // namespace fxpress::serde
