#include "serde/encode_part.h"

#include "fx/symbols.h"

namespace fxpress::serde {

namespace {

PyObject* item(PyObject* tuple, Py_ssize_t i) {
  return PyTuple_GET_ITEM(tuple, i);
}

// A node, and behind it the nodes that take its results apart.
void add_with_users(PyObject* node, std::vector<Ref>& nodes, int depth) {
  nodes.push_back(Ref::borrow(node));
  if (depth == 0) return;
  const Ref users =
      Ref::steal(PySequence_Tuple(fx::node_field(node, fx::symbols.node_users).get()));
  for (Py_ssize_t i = 0; i < PyTuple_GET_SIZE(users.get()); ++i) {
    PyObject* user = item(users.get(), i);
    if (fx::node_field(user, fx::symbols.node_target).get() == fx::symbols.getitem) {
      add_with_users(user, nodes, depth - 1);
    }
  }
}

}  // namespace

// Writes a whole node, or its outputs alone.
void PartEncoder::single_node(PyObject* node, bool whole) {
  constexpr int kNested = 2;  // results of results: lists
  std::vector<Ref> nodes;
  add_with_users(node, nodes, kNested);
  const GraphValues values(std::move(nodes), encoders_.to.operators);
  {
    const NodeNames::Within within(encoders_.to.names, values, nullptr);
    const NodeEntry& entry = values.entries.front();
    whole ? encoders_.nodes.node(entry) : encoders_.nodes.outputs(entry);
  }
  for (const NamedValue& value : values.values) {
    const Ref pair = Ref::steal(PyTuple_Pack(2, value.name.get(), value.value.get()));
    check(PyList_Append(results_, pair.get()));
  }
  for (const NodeEntry& other : values.entries) {
    if (other.duplicate_of == core::PositionTable::kAbsent) continue;
    PyObject* first = values.entries[other.duplicate_of].name.get();
    check(PyDict_SetItem(merged_, other.name.get(), first));
  }
}

void PartEncoder::part(std::string_view kind, PyObject* values) {
  SignatureEncoder& signatures = encoders_.signatures;
  PyObject* first = item(values, 0);
  if (kind == "argument") return encoders_.arguments.argument(first, item(values, 1));
  if (kind == "inputs") return inputs(values);
  if (kind == "node") return single_node(first, true);
  if (kind == "outputs") return single_node(first, false);
  if (kind == "metadata") return encoders_.metadata.metadata(first);
  if (kind == "signature") return signatures.signature(first);
  if (kind == "input_spec") return signatures.input_spec(first);
  if (kind == "output_spec") return signatures.output_spec(first);
  if (kind == "argument_spec") return signatures.argument_spec(first);
  if (kind == "call_signature") return signatures.call_signature(first);
  if (kind == "call") return signatures.call(first);
  graph(first);  // "graph"
}

// values: (described operator, args, kwargs)
void PartEncoder::inputs(PyObject* values) {
  const Operator function = operator_of(item(values, 0));
  const Ref args = Ref::steal(PySequence_Tuple(item(values, 1)));
  encoders_.nodes.inputs(function, function.kind == OperatorKind::kSymbolic, args.get(),
                         item(values, 2));
}

void PartEncoder::graph(PyObject* graph_module) {
  encoders_.graphs.graph(graph_module);
  for (const auto& [name, other] : encoders_.to.names.merged()) {
    check(PyDict_SetItem(merged_, new_string(name).get(), other.get()));
  }
}

}  // namespace fxpress::serde
