#include <algorithm>
#include <iterator>

#include "core/check.h"
#include "fx/symbols.h"
#include "py/gc_pause.h"
#include "serde/decoder.h"
#include "serde/scalars.h"
#include "serde/symbols.h"

namespace fxpress::fx::serde {

using ::fxpress::schema::Type;
using ::fxpress::schema::ValueKind;

namespace {

template <class Each>
void each_name(const core::StringPool& pool, size_t count, Each each) {
  for (uint32_t i = 0; i < count; ++i) each(i, pool.text(core::StringId(i)));
}

}  // namespace

Decoder::State& Decoder::state_of(uint64_t scope) {
  for (State& state : states_) {
    if (state.scope == scope) return state;
  }
  raise(symbols.serialize_error, "the graph is not open any more");
}

Ref Decoder::nodes(uint64_t scope) {
  const State& state = state_of(scope);
  Ref result = Ref::steal(PyDict_New());
  each_name(state.pool, state.defined.size(), [&](size_t i, std::string_view name) {
    PyObject* node = state.defined[i].node.get();
    if (node != nullptr) check(PyDict_SetItem(result.get(), new_text(name).get(), node));
  });
  return result;
}

PyObject* Decoder::node(uint64_t scope, std::string_view name) {
  State& state = state_of(scope);
  const size_t id = state.pool.intern(name).value();
  return id < state.defined.size() ? state.defined[id].node.get() : nullptr;
}

Ref Decoder::value_names(uint64_t scope) {
  const State& state = state_of(scope);
  Ref result = Ref::steal(PyList_New(0));
  each_name(state.pool, state.defined.size(), [&](size_t i, std::string_view name) {
    if (state.defined[i].meta == nullptr) return;
    check(PyList_Append(result.get(), new_text(name).get()));
  });
  return result;
}

Ref Decoder::value(uint64_t scope, std::string_view name) {
  State& state = state_of(scope);
  const size_t id = state.pool.intern(name).value();
  Defined unknown;
  return Ref::borrow(value_of(id < state.defined.size() ? state.defined[id] : unknown, name));
}

namespace {

struct PartKind {
  std::string_view name;
  Type type;  // of the document
};

constexpr PartKind kParts[] = {
    {"argument", Type::Argument},
    {"argument_spec", Type::Argument},
    {"call_signature", Type::ModuleCallSignature},
    {"graph", Type::Graph},
    {"input_spec", Type::InputSpec},
    {"inputs", Type::Node},
    {"metadata", Type::Node},
    {"multiple_outputs", Type::Node},
    {"node", Type::Node},
    {"output_spec", Type::OutputSpec},
    {"outputs", Type::Node},
    {"result", Type::Argument},
    {"signature", Type::GraphSignature},
    {"tensor", Type::TensorMeta},
};

}  // namespace

// The root of the document is the part. `extra` by kind:
//   node, inputs      a target as resolve_target() describes it
//   outputs           (such a target, the node that returns them)
//   multiple_outputs  the node that returns them
//   result            (the node that returns it among others, its place)
Ref Decoder::part(std::string_view kind, PyObject* extra) {
  const GcPause pause;
  const Value& value = document_->root();
  const auto known = std::find_if(std::begin(kParts), std::end(kParts),
                                  [&](const PartKind& each) { return each.name == kind; });
  FXPRESS_CHECK(known != std::end(kParts), "parts of this kind are not known");
  check_root(known->type);
  if (kind == "tensor") return tensor(value);
  if (kind == "input_spec") return input_spec(value);
  if (kind == "output_spec") return output_spec(value);
  if (kind == "argument_spec") return argument_spec(value);
  if (kind == "signature") return signature(value);
  if (kind == "call_signature") return call_signature(value);
  if (kind == "metadata") {
    Ref result = Ref::steal(PyDict_New());
    add_metadata(metadata(field(value, Field::Node_metadata)), result.get());
    return result;
  }

  // Kinds that may add nodes.
  state_->writer.resume();
  is_open_ = true;
  struct Close {
    Decoder& decoder;
    ~Close() { decoder.is_open_ = false; }
  } const closes{*this};
  inputs_.clear();
  graphs_.clear();
  Ref result;
  try {
    result = add_part(kind, value, extra);
  } catch (...) {
    state_->writer.finish();
    throw;
  }
  state_->writer.finish();
  return result;
}

// The types of documents are the callers' choice, and fields are not looked up by name.
void Decoder::check_root(Type type) const {
  const Value& root = document_->root();
  const bool has_type = root.kind == ValueKind::kRecord || root.kind == ValueKind::kUnion;
  if (has_type && root.type == static_cast<uint16_t>(type)) return;
  const auto name_of = [&](uint16_t id) { return document_->schema().type(id).name.c_str(); };
  raise(PyExc_TypeError, "a %s is needed, not %s", name_of(static_cast<uint16_t>(type)),
        has_type ? name_of(root.type) : "a plain value");
}

Ref Decoder::add_part(std::string_view kind, const Value& value, PyObject* extra) {
  const auto item = [&](Py_ssize_t i) { return PyTuple_GET_ITEM(extra, i); };
  if (kind == "argument") return argument(value);
  if (kind == "inputs") {
    Ref kwargs = Ref::steal(PyDict_New());
    const Ref args = node_arguments(document_->children(field(value, Field::Node_inputs)),
                                    TargetTable::described(extra), kwargs);
    return Ref::steal(PyTuple_Pack(2, args.get(), kwargs.get()));
  }
  if (kind == "node") return Ref::borrow(node(value, TargetTable::described(extra)));
  if (kind == "outputs") {
    results(value, TargetTable::described(item(0)), item(1),
            metadata(field(value, Field::Node_metadata)));
    return Ref::borrow(Py_None);
  }
  if (kind == "multiple_outputs") {
    auto parts = document_->children(field(value, Field::Node_outputs));
    if (parts.size() == 1) parts = document_->children(document_->content(parts[0]));
    multiple_results(parts, extra, metadata(field(value, Field::Node_metadata)));
    return Ref::borrow(Py_None);
  }
  if (kind == "result") {
    const size_t place = PyLong_AsSize_t(item(1));
    if (PyErr_Occurred() != nullptr) throw_python_error();
    return take(item(0), place, value, {});
  }
  write_graph(value);
  return Ref::borrow(state_->writer.graph());
}

}  // namespace fxpress::fx::serde
