#include "decompose/recipe.h"

#include <string_view>

#include "core/check.h"
#include "py/calls.h"
#include "py/containers.h"

namespace fxpress::decompose {

namespace {

// The constants in fxpress/_graphs/decompose/template.py, in the order of MetaKind.
constexpr std::string_view kKindNames[] = {"copied", "literal", "copied literal", "stack",
                                           "source", "value",   "sequence",       "counted"};

Ref field(PyObject* object, const char* name) {
  return Ref::steal(PyObject_GetAttrString(object, name));
}

PyObject* item(const Ref& tuple, Py_ssize_t index) {
  FXPRESS_CHECK(PyTuple_Check(tuple.get()) && index < PyTuple_GET_SIZE(tuple.get()),
                "expected a longer tuple as a field of a template");
  return PyTuple_GET_ITEM(tuple.get(), index);
}

int32_t value_number(PyObject* value) {
  return static_cast<int32_t>(to_long(value));
}

int32_t number_or(const Ref& value, int32_t none) {
  return value.get() == Py_None ? none : value_number(value.get());
}

MetaKind kind_of(PyObject* name) {
  const std::string_view text = utf8(name);
  for (size_t i = 0; i < std::size(kKindNames); ++i) {
    if (text == kKindNames[i]) return static_cast<MetaKind>(i);
  }
  FXPRESS_CHECK(false, "a template has an item of meta of an unknown type");
  return MetaKind::kLiteral;
}

ValueSpec read_value(PyObject* source) {
  ValueSpec spec;
  if (PyTuple_CheckExact(source) || PyList_CheckExact(source)) {
    spec.type = PyList_CheckExact(source) ? ValueType::kList : ValueType::kTuple;
    const Ref items = Ref::steal(PySequence_Tuple(source));
    for (PyObject* part : items_of(items.get())) spec.parts.push_back(read_value(part));
  } else if (PyTuple_Check(source)) {
    const Ref facts = field(source, "facts");
    spec.type = ValueType::kTensor;
    spec.shape = field(facts.get(), "shape");
    spec.strides = field(facts.get(), "strides");
    spec.dtype = field(facts.get(), "dtype");
    spec.device = field(facts.get(), "device");
    spec.offset = field(facts.get(), "offset");
    spec.storage = value_number(field(source, "storage").get());
    spec.pattern = field(source, "pattern");
    spec.is_whole = field(source, "is_whole").get() == Py_True;
  } else {
    spec.constant = Ref::borrow(source);
  }
  return spec;
}

RecipeNode read_node(PyObject* source, fx::NameWriter& names) {
  RecipeNode node{field(source, "target"),
                  field(source, "original"),
                  names.candidate(field(source, "candidate").get()),
                  field(source, "is_impure").get() == Py_True,
                  {},
                  {},
                  read_value(field(source, "value").get()),
                  number_or(field(source, "number"), kNoNumber),
                  field(source, "is_needed").get() == Py_True,
                  value_number(field(source, "parts").get()),
                  number_or(field(source, "read"), kNothing)};
  const Ref uses = field(source, "uses");
  for (Py_ssize_t i = 0; i < PyTuple_Size(uses.get()); ++i) {
    node.uses.push_back(value_number(item(uses, i)));
  }
  const Ref meta = field(source, "meta");
  for (Py_ssize_t i = 0; i < PyTuple_Size(meta.get()); ++i) {
    const Ref entry = Ref::borrow(item(meta, i));
    node.meta.push_back(
        {Ref::borrow(item(entry, 0)), kind_of(item(entry, 1)), Ref::borrow(item(entry, 2))});
  }
  return node;
}

}  // namespace

Recipe::Recipe(PyObject* source, fx::NameWriter& names) {
  const Ref nodes = field(source, "nodes");
  for (Py_ssize_t i = 0; i < PyTuple_Size(nodes.get()); ++i) {
    nodes_.push_back(read_node(item(nodes, i), names));
    for (const MetaItem& entry : nodes_.back().meta) counts_ |= entry.kind == MetaKind::kCounted;
  }
  const Ref numbers = field(source, "numbers");
  DictItems items(numbers.get());
  while (items.next()) {
    numbers_.insert(reinterpret_cast<uintptr_t>(items.key()),
                    static_cast<uint32_t>(values_.size()));
    values_.push_back(value_number(items.value()));
  }
}

int32_t Recipe::number_of(PyObject* original) const {
  const uint32_t index = numbers_.find(reinterpret_cast<uintptr_t>(original));
  FXPRESS_CHECK(index != core::FlatMap::kAbsent, "a template refers to a node outside of it");
  return values_[index];
}

}  // namespace fxpress::decompose
