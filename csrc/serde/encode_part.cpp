#include "fx/reader.h"
#include "fx/symbols.h"
#include "serde/encoder.h"
#include "serde/symbols.h"
#include "serde/text.h"

namespace fxpress::fx::serde {

namespace {

PyObject* item(PyObject* tuple, Py_ssize_t i) {
  return PyTuple_GET_ITEM(tuple, i);
}

// A node, and behind it the nodes that take its results apart.
void add_with_users(PyObject* node, std::vector<Ref>& nodes, int depth) {
  nodes.push_back(Ref::borrow(node));
  if (depth == 0) return;
  const Ref users = Ref::steal(PySequence_Tuple(node_field(node, fx::symbols.node_users).get()));
  for (Py_ssize_t i = 0; i < PyTuple_GET_SIZE(users.get()); ++i) {
    PyObject* user = item(users.get(), i);
    if (node_field(user, fx::symbols.node_target).get() == fx::symbols.getitem) {
      add_with_users(user, nodes, depth - 1);
    }
  }
}

}  // namespace

// An argument of a part alone: what it is, its own value tells.
const NodeEntry& Encoder::entry_alone(PyObject* node) {
  Ref name = node_field(node, fx::symbols.node_name);
  if (PyObject* other = dict_get(alone_, name.get())) name = Ref::borrow(other);
  const core::Op op = parse_op(node_field(node, fx::symbols.node_op).get());
  Table table = Table::kTensor;
  const Ref meta = node_field(node, fx::symbols.node_meta);
  if (PyObject* value = dict_get(meta.get(), fx::names.val)) {
    const bool is_object = is_a(value, symbols.custom_obj_argument_type);
    const Table own = is_object ? Table::kCustomObject : table_of(value);
    if (own != Table::kNone) table = own;
  }
  alone_entries_.push_back({Ref::borrow(node), std::move(name), nullptr, 0,
                            core::PositionTable::kAbsent, op, table, false});
  return alone_entries_.back();
}

// A node, or its outputs alone.
void Encoder::single_node(PyObject* node, bool whole, PyObject* results, PyObject* merged) {
  constexpr int kNested = 2;  // results of results: lists
  std::vector<Ref> nodes;
  add_with_users(node, nodes, kNested);
  GraphValues values(std::move(nodes), operators_);
  values_ = &values;
  const NodeEntry& entry = values.entries.front();
  if (whole) {
    this->node(entry);
  } else {
    sink_.begin_list();
    node_outputs(entry);
    sink_.end_list();
  }
  values_ = nullptr;
  for (const NamedValue& value : values.values) {
    const Ref pair = Ref::steal(PyTuple_Pack(2, value.name.get(), value.value.get()));
    check(PyList_Append(results, pair.get()));
  }
  for (const NodeEntry& other : values.entries) {
    if (other.duplicate_of == core::PositionTable::kAbsent) continue;
    PyObject* first = values.entries[other.duplicate_of].name.get();
    check(PyDict_SetItem(merged, other.name.get(), first));
  }
}

void Encoder::part(std::string_view kind, PyObject* values, PyObject* results, PyObject* merged) {
  alone_ = merged;
  PyObject* first = item(values, 0);
  if (kind == "argument") return argument(first, item(values, 1));
  if (kind == "node") return single_node(first, true, results, merged);
  if (kind == "outputs") return single_node(first, false, results, merged);
  if (kind == "metadata") return metadata(first);
  if (kind == "signature") return signature(first);
  if (kind == "input_spec") return input_spec(first);
  if (kind == "output_spec") return output_spec(first);
  if (kind == "argument_spec") return argument_spec(first);
  if (kind == "call_signature") return call_signature(first);
  if (kind == "call") return call_entry(first);
  if (kind == "inputs") {  // (described operator, args, kwargs)
    const Operator function = operator_of(first);
    const Ref args = Ref::steal(PySequence_Tuple(item(values, 1)));
    sink_.begin_list();
    inputs_of(function, function.kind == OperatorKind::kSymbolic, args.get(), item(values, 2));
    return sink_.end_list();
  }
  graph(first);  // "graph"
  for (const auto& [name, other] : merged_) {
    check(PyDict_SetItem(merged, new_string(name).get(), other.get()));
  }
}

}  // namespace fxpress::fx::serde
