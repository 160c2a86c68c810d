#include "serde/decode_graph.h"

#include "fx/graph_module.h"
#include "fx/symbols.h"
#include "py/containers.h"
#include "serde/scalars.h"
#include "serde/symbols.h"

namespace fxpress::serde {

using core::Op;

namespace {

constexpr uint64_t kGraphBytes = 16 << 10;  // an empty graph takes about so many

PyObject* value_of(PyObject* node) {
  PyObject* value = dict_get(fx::node_field(node, fx::symbols.node_meta).get(), fx::names.val);
  if (value == nullptr) {
    raise(symbols.serialize_error, "the graph returns %R, which has no value", node);
  }
  return value;
}

}  // namespace

Ref GraphDecoder::graph_module(const Value& graph) {
  write(graph);
  OpenGraph& open = graphs_.current();
  open.writer().finish();
  return fx::make_graph_module_of(open.root(), open.graph());
}

void GraphDecoder::write(const Value& graph) {
  file_.charge(kGraphBytes);
  read_tables(graph);
  size_t position = 0;
  for (const Value& argument : file_.children(file_.field(graph, Field::Graph_inputs))) {
    input(argument, position++);
  }
  for (const Value& value : file_.children(file_.field(graph, Field::Graph_nodes))) {
    poll_signals(steps_++);
    nodes_.checked_node(value);
  }
  outputs(graph);
  Ref::steal(
      PyObject_CallMethodOneArg(file_.context.values, names.end_graph, graphs_.current().graph()));
}

void GraphDecoder::read_tables(const Value& graph) {
  OpenGraph& open = graphs_.current();
  const auto read = [&](Field name, Table table) {
    const Value& map = file_.field(graph, name);
    const auto entries = file_.children(map);
    for (size_t i = 0; i < entries.size(); i += 2) {
      Defined& entry = open.defined(file_.text(entries[i]));
      entry.meta = &entries[i + 1];
      entry.document = file_.document;
      entry.table = table;
    }
  };
  read(Field::Graph_tensor_values, Table::kTensor);
  read(Field::Graph_sym_int_values, Table::kSymInt);
  read(Field::Graph_sym_float_values, Table::kSymFloat);
  read(Field::Graph_sym_bool_values, Table::kSymBool);
  read(Field::Graph_custom_obj_values, Table::kCustomObject);
}

void GraphDecoder::input(const Value& argument, size_t position) {
  file_.charge(kNodeBytes);
  const auto placeholder = [&](PyObject* name) {
    OpenGraph& open = graphs_.current();
    fx::NewNode node{Op::kPlaceholder, name, open.names().candidate_for_target(name), Py_None};
    return open.writer().leaf(node, Ref::borrow(fx::no_args), {});
  };
  switch (file_.tag(argument)) {
    case Field::Argument_as_tensor:
    case Field::Argument_as_custom_obj:
    case Field::Argument_as_sym_int:
    case Field::Argument_as_sym_float:
    case Field::Argument_as_sym_bool: {
      const auto name = file_.name_in(argument);
      if (!name) raise(symbols.serialize_error, "input %zu of a graph is a constant", position);
      return results_.name_node(placeholder(new_text(*name).get()), *name);
    }
    case Field::Argument_as_int:
    case Field::Argument_as_float:
    case Field::Argument_as_bool:
    case Field::Argument_as_none:
    case Field::Argument_as_string: {
      const Ref specs = file_.signature ? get_attr(file_.signature.get(), names.input_specs)
                                        : Ref::steal(PyList_New(0));
      Ref name;
      if (position < static_cast<size_t>(PyList_Size(specs.get()))) {
        PyObject* spec = PyList_GET_ITEM(specs.get(), static_cast<Py_ssize_t>(position));
        name = get_attr(get_attr(spec, fx::names.arg).get(), fx::names.name);
      }
      if (!name || PyUnicode_GetLength(name.get()) == 0) {
        name = Ref::steal(PyUnicode_FromFormat("arg%zu", position));
      }
      if (PyUnicode_IsIdentifier(name.get()) != 1) {
        raise(symbols.serialize_error, "%R cannot be a name in a graph", name.get());
      }
      PyObject* node = placeholder(name.get());
      const Ref meta = fx::node_field(node, fx::symbols.node_meta);
      check(PyDict_SetItem(meta.get(), fx::names.val, arguments_.argument(argument).get()));
      return;
    }
    default:
      raise(symbols.serialize_error, "Invalid input type: input %zu of a graph", position);
  }
}

void GraphDecoder::outputs(const Value& graph) {
  const auto stored = file_.children(file_.field(graph, Field::Graph_outputs));
  std::vector<Ref> results;
  std::vector<Ref> values;
  arguments_.clear_mentions();
  for (const Value& output : stored) {
    results.push_back(arguments_.argument(output));
    PyObject* result = results.back().get();
    values.push_back(Ref::borrow(fx::is_node(result) ? value_of(result) : result));
  }
  Ref result;
  Ref value;
  if (file_.field(graph, Field::Graph_is_single_tensor_return).integer != 0) {
    if (results.size() != 1 || !fx::is_node(results[0].get())) {
      raise(symbols.serialize_error, "a graph that returns a single tensor has %zu outputs",
            results.size());
    }
    result = std::move(results[0]);
    value = std::move(values[0]);
  } else {
    result = take_as_tuple(results);
    value = take_as_tuple(values);
  }
  Ref args = Ref::steal(PyTuple_Pack(1, result.get()));
  Ref meta = Ref::steal(PyDict_New());
  check(PyDict_SetItem(meta.get(), fx::names.val, value.get()));
  OpenGraph& open = graphs_.current();
  const fx::NewNode node{Op::kOutput, fx::symbols.output,
                         open.names().candidate_for_target(fx::symbols.output), Py_None};
  open.writer().create(node, std::move(args), Ref::borrow(fx::no_kwargs),
                       arguments_.mentions().nodes, std::move(meta));
}

}  // namespace fxpress::serde
