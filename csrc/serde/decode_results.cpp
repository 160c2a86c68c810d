#include "fx/symbols.h"
#include "schema/names_in.h"
#include "serde/decoder.h"
#include "serde/scalars.h"
#include "serde/symbols.h"

namespace fxpress::fx::serde {

using core::Op;
using ::fxpress::schema::Type;
using ::fxpress::schema::ValueKind;

// The name of a single result; none when it is a constant, or a list.
std::optional<std::string_view> Decoder::name_in(const Value& result) const {
  const bool is_argument =
      result.kind == ValueKind::kUnion && result.type == static_cast<uint16_t>(Type::Argument);
  const std::string_view name =
      ::fxpress::schema::name_of(*document_, is_argument ? document_->content(result) : result);
  if (name.empty()) return std::nullopt;
  return name;
}

void Decoder::set_value(PyObject* node, PyObject* value) {
  const Ref meta = node_field(node, fx::symbols.node_meta);
  check(PyDict_SetItem(meta.get(), fx::names.val, value));
}

// What a node returns: its own value, or several that other nodes take from it.
void Decoder::results(const Value& value, const Target& target, PyObject* node,
                      const Metadata& metadata) {
  auto parts = document_->children(field(value, Field::Node_outputs));
  if (parts.empty()) {  // nothing, or of a graph that returns nothing an empty tuple
    if (target.kind == Target::Kind::kHigherOrder) set_value(node, no_args);
    return;
  }
  if (parts.size() == 1) {
    const Field kind = document_->tag(parts[0]);
    if (kind == Field::Argument_as_none) {
      set_value(node, Py_None);
      return name_unused(node);
    }
    if (target.kind != Target::Kind::kHigherOrder || returns_itself(value)) {
      if (const auto name = name_in(parts[0])) return name_node(node, *name);
      const Value& content = document_->content(parts[0]);
      if (content.kind != ValueKind::kList) {
        raise(symbols.serialize_error, "the result of a node has no name");
      }
      parts = document_->children(content);
    }
  }
  multiple_results(parts, node, metadata);
}

// Other nodes take the results, also when there are none.
void Decoder::multiple_results(std::span<const Value> parts, PyObject* node,
                               const Metadata& metadata) {
  const Ref values = take_apart(node, parts, metadata);
  set_value(node, Ref::steal(PyList_AsTuple(values.get())).get());
  const Ref name = node_field(node, fx::symbols.node_name);
  defined(utf8(name.get())).node = Ref::borrow(node);
}

// Adds a node for each of several results; returns a list of their values.
Ref Decoder::take_apart(PyObject* node, std::span<const Value> parts, const Metadata& metadata) {
  Ref values = Ref::steal(PyList_New(0));
  for (size_t i = 0; i < parts.size(); ++i) {
    check(PyList_Append(values.get(), take(node, i, parts[i], metadata).get()));
  }
  return values;
}

PyObject* Decoder::getitem(PyObject* node, size_t index, core::StringId candidate) {
  const Ref position = Ref::steal(PyLong_FromSize_t(index));
  Ref args = Ref::steal(PyTuple_Pack(2, node, position.get()));
  const NewNode made{Op::kCallFunction, fx::symbols.getitem, candidate, Py_None};
  return state_->writer.create(made, std::move(args), Ref::borrow(no_kwargs), {&node, 1}, {});
}

Ref Decoder::take(PyObject* node, size_t index, const Value& part, const Metadata& metadata) {
  const core::Budget::Level level(*context_.budget, "the results of a node");
  charge(kNodeBytes);
  if (const auto name = name_in(part)) {
    PyObject* taken = getitem(node, index, candidate(*name));
    name_node(taken, *name);
    const Ref meta = node_field(taken, fx::symbols.node_meta);
    add_metadata(metadata, meta.get());
    return Ref::borrow(dict_get(meta.get(), fx::names.val));
  }
  const bool is_argument =
      part.kind == ValueKind::kUnion && part.type == static_cast<uint16_t>(Type::Argument);
  if (is_argument && document_->tag(part) == Field::Argument_as_none) {
    PyObject* taken = getitem(node, index, candidate("as_none"));
    set_value(taken, Py_None);
    add_metadata(metadata, node_field(taken, fx::symbols.node_meta).get());
    return Ref::borrow(Py_None);
  }
  if (is_argument && document_->content(part).kind == ValueKind::kList) {
    PyObject* taken =
        getitem(node, index, state_->name_writer.candidate_for_target(fx::symbols.getitem));
    Ref values = take_apart(taken, document_->children(document_->content(part)), metadata);
    add_metadata(metadata, node_field(taken, fx::symbols.node_meta).get());
    set_value(taken, values.get());
    return values;
  }
  raise(symbols.serialize_error, "result %zu of a node has no name", index);
}

// A node without a result gives up the name that it was made with.
void Decoder::name_unused(PyObject* node) {
  NameWriter& writer = state_->name_writer;
  const Ref target = node_field(node, fx::symbols.node_target);
  std::string wanted(writer.text(writer.candidate_for_target(target.get())));
  wanted += "_unused";
  const Ref now = node_field(node, fx::symbols.node_name);
  if (utf8(now.get()) == wanted) return;
  PyObject* name = writer.string(writer.table().create(writer.intern(wanted)));
  state_->writer.rename(node, name);
}

}  // namespace fxpress::fx::serde
