#include <algorithm>

#include "fx/graph_module.h"
#include "fx/symbols.h"
#include "py/calls.h"
#include "py/containers.h"
#include "serde/graph_decoder.h"
#include "serde/symbols.h"

namespace fxpress::serde {

using core::Op;

namespace {

constexpr uint64_t kGraphBytes = 16 << 10;  // estimated size of an empty torch.fx.Graph

void add_keyword(Ref& kwargs, std::string_view name, const Ref& value) {
  if (kwargs.get() == fx::no_kwargs) {
    kwargs = call(fx::symbols.immutable_dict_type);
  }
  check(PyDict_SetItem(kwargs.get(), new_text(name).get(), value.get()));
}

void set_value(PyObject* node, PyObject* value) {
  const Ref meta = fx::node_field(node, fx::symbols.node_meta);
  check(PyDict_SetItem(meta.get(), fx::names.val, value));
}

PyObject* get_value(PyObject* node) {
  PyObject* value = dict_get(fx::node_field(node, fx::symbols.node_meta).get(), fx::names.val);
  if (value == nullptr) {
    raise(symbols.serialize_error, "the graph returns %R, which does not have a value", node);
  }
  return value;
}

}  // namespace

Ref GraphDecoder::graph_module(const Value& graph) {
  write_graph(graph);
  OpenGraph& open = current();
  open.writer().finish();
  return fx::make_graph_module_of(open.root(), open.graph());
}

void GraphDecoder::write_graph(const Value& graph) {
  charge(kGraphBytes);
  read_tables(graph);
  size_t position = 0;
  for (const Value& value : children_of(graph, Field::Graph_inputs)) input(value, position++);
  for (const Value& value : children_of(graph, Field::Graph_nodes)) {
    poll_signals(steps_++);
    read_node(value);
  }
  outputs(graph);
  call_method(values_.ptr(), fx::names.end_graph, current().graph());
}

void GraphDecoder::read_tables(const Value& graph) {
  for (const TableFields& fields : kTableFields) {
    const auto entries = children_of(graph, fields.values);
    for (size_t i = 0; i < entries.size(); i += 2) {
      Defined& entry = current().defined(text_of(entries[i]));
      entry.meta = &entries[i + 1];
      entry.document = document_;
      entry.table = static_cast<Table>(&fields - kTableFields);
    }
  }
}

void GraphDecoder::input(const Value& value, size_t position) {
  charge(kNodeBytes);
  const auto placeholder = [&](PyObject* name) {
    OpenGraph& open = current();
    fx::NewNode node{Op::kPlaceholder, name, open.names().candidate_for_target(name), Py_None};
    return open.writer().leaf(node, Ref::borrow(fx::no_args), {});
  };
  switch (tag_of(value)) {
    case Field::Argument_as_tensor:
    case Field::Argument_as_custom_obj:
    case Field::Argument_as_sym_int:
    case Field::Argument_as_sym_float:
    case Field::Argument_as_sym_bool: {
      const auto name = name_in(value);
      if (!name)
        raise(symbols.serialize_error, "input %zu of a graph: expected a name, found a constant",
              position);
      return name_result(placeholder(new_text(*name).get()), *name);
    }
    case Field::Argument_as_int:
    case Field::Argument_as_float:
    case Field::Argument_as_bool:
    case Field::Argument_as_none:
    case Field::Argument_as_string: {
      const Ref specs = signature_ ? get_attr(signature_.get(), fx::names.input_specs)
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
        raise(symbols.serialize_error, "%R cannot be the name of a node", name.get());
      }
      PyObject* node = placeholder(name.get());
      return set_value(node, argument(value).get());
    }
    default:
      raise(symbols.serialize_error, "Invalid input type: input %zu of a graph", position);
  }
}

void GraphDecoder::outputs(const Value& graph) {
  const auto stored = children_of(graph, Field::Graph_outputs);
  std::vector<Ref> results;
  std::vector<Ref> values;
  clear_mentions();
  for (const Value& output : stored) {
    results.push_back(argument(output));
    PyObject* result = results.back().get();
    values.push_back(Ref::borrow(fx::is_node(result) ? get_value(result) : result));
  }
  Ref result;
  Ref value;
  if (field(graph, Field::Graph_is_single_tensor_return).integer != 0) {
    if (results.size() != 1 || !fx::is_node(results[0].get())) {
      raise(symbols.serialize_error,
            "expected one tensor as the output of a graph, found %zu outputs", results.size());
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
  OpenGraph& open = current();
  const fx::NewNode node{Op::kOutput, fx::symbols.output,
                         open.names().candidate_for_target(fx::symbols.output), Py_None};
  open.writer().create(node, std::move(args), Ref::borrow(fx::no_kwargs), mentions_.nodes,
                       std::move(meta));
}

void GraphDecoder::read_node(const Value& value) {
  try {
    add_node(value, operators_.get(text_of(value, Field::Node_target), resolve_.ptr()));
  } catch (pybind11::error_already_set& error) {
    if (!error.matches(PyExc_Exception)) throw;
    const Ref failed = classes_->make(*document_, value, false);
    // Before Python 3.12, fetched exceptions lack the traceback. It may show a signal handler.
    if (error.trace()) PyException_SetTraceback(error.value().ptr(), error.trace().ptr());
    call(symbols.reading_failed, failed, error.value().ptr());
  }
}

// Returns the name to request for a new node. Files of older torch releases do not store names of
// nodes. For such a file, a node with one result requests the name of the result, and any other
// node requests a name made from its target.
core::StringId GraphDecoder::candidate_of(const Value& node, const Operator& target) {
  const Value& name = field(node, Field::Node_name);
  if (name.kind == ValueKind::kString && name.count > 0) return current().candidate(text_of(name));
  const auto results = children_of(node, Field::Node_outputs);
  const bool single = target.takes_numbers || target.returns_single(ReturnKind::kTensor) ||
                      (target.kind == OperatorKind::kHigherOrder && returns_itself(node));
  if (single && results.size() == 1) {
    if (const auto result = name_in(results[0])) return current().candidate(*result);
  }
  return current().names().candidate_for_target(target.object.get());
}

PyObject* GraphDecoder::add_node(const Value& value, const Operator& target) {
  charge(kNodeBytes);
  clear_mentions();
  Ref kwargs = Ref::borrow(fx::no_kwargs);
  Ref args = arguments(children_of(value, Field::Node_inputs), target, kwargs);
  const std::vector<PyObject*> graphs = std::move(mentions_.graphs);
  PyObject* node = current().writer().create(
      {Op::kCallFunction, target.object.get(), candidate_of(value, target), Py_None},
      std::move(args), std::move(kwargs), mentions_.nodes, {});
  const Metadata metadata = read_metadata(value);
  results(value, target, node, metadata);
  const Ref meta = fx::node_field(node, fx::symbols.node_meta);
  add_metadata(metadata, meta.get());
  if (dict_get(meta.get(), fx::names.nn_module_stack) == nullptr) {
    check(PyDict_SetItem(meta.get(), fx::names.nn_module_stack, Ref::steal(PyDict_New()).get()));
  }
  // get_attr nodes have no metadata in files. Copy the metadata of the node that uses the subgraph.
  for (PyObject* graph : graphs) {
    add_metadata(metadata, fx::node_field(graph, fx::symbols.node_meta).get());
  }
  if (target.constrains) call_method(values_.ptr(), fx::names.constrain, node);
  return node;
}

int64_t GraphDecoder::kind_of(const Value& input) const {
  const Value& kind = field(input, Field::NamedArgument_kind);
  return kind.kind == ValueKind::kInt ? kind.integer : 0;
}

Ref GraphDecoder::arguments(std::span<const Value> inputs, const Operator& target, Ref& kwargs) {
  const bool by_schema = target.kind == OperatorKind::kSchema && !target.takes_numbers;
  return by_schema ? schema_arguments(inputs, target, kwargs)
                   : other_arguments(inputs, target, kwargs);
}

// Reads the arguments of a target that has no schema.
Ref GraphDecoder::other_arguments(std::span<const Value> inputs, const Operator& target,
                                  Ref& kwargs) {
  std::vector<Ref> args;
  for (const Value& input : inputs) {
    Ref value = argument(field(input, Field::NamedArgument_arg));
    const std::string_view name = text_of(input, Field::NamedArgument_name);
    if (target.takes_numbers || name.empty() || kind_of(input) == kPositional) {
      args.push_back(std::move(value));
    } else {
      add_keyword(kwargs, name, value);
    }
  }
  return take_as_tuple(args);
}

// Reads the arguments of an operator in the order of its schema.
Ref GraphDecoder::schema_arguments(std::span<const Value> inputs, const Operator& target,
                                   Ref& kwargs) {
  std::vector<Ref> values;
  std::vector<size_t> positions(target.arguments.size(), inputs.size());  // by argument, in inputs
  size_t next = 0;  // where the next search starts: most files have the order of the schema
  for (size_t i = 0; i < inputs.size(); ++i) {
    const std::string_view name = text_of(inputs[i], Field::NamedArgument_name);
    const auto has_name = [&](const OperatorArgument& argument) { return argument.name == name; };
    auto found = std::find_if(target.arguments.begin() + static_cast<ptrdiff_t>(next),
                              target.arguments.end(), has_name);
    if (found == target.arguments.end()) {
      found = std::find_if(target.arguments.begin(), target.arguments.end(), has_name);
    }
    if (found == target.arguments.end()) {
      raise(symbols.serialize_error, "%R does not have an argument %R", target.object.get(),
            new_text(name).get());
    }
    const auto declared = static_cast<size_t>(found - target.arguments.begin());
    positions[declared] = i;
    next = declared + 1;
    values.push_back(argument(field(inputs[i], Field::NamedArgument_arg)));
  }
  std::vector<Ref> args;
  std::vector<std::pair<std::string_view, Ref>> named;
  for (size_t i = 0; i < positions.size(); ++i) {
    const OperatorArgument& declared = target.arguments[i];
    const bool is_passed = positions[i] < inputs.size();
    const int64_t kind = is_passed ? kind_of(inputs[positions[i]]) : 0;
    const bool positional = declared.required && !declared.keyword_only;
    if (!is_passed) {
      if (!positional) continue;
      raise(symbols.serialize_error, "argument '%s' of %R is missing", declared.name.c_str(),
            target.object.get());
    }
    Ref value = std::move(values[positions[i]]);
    const bool by_name = kind == kKeyword || (kind != kPositional && !positional);
    if (!by_name) {
      args.push_back(std::move(value));
    } else if (declared.is_python_keyword) {  // pass it and all earlier arguments by position
      for (auto& before : named) args.push_back(std::move(before.second));
      named.clear();
      args.push_back(std::move(value));
    } else {
      named.emplace_back(declared.name, std::move(value));
    }
  }
  for (const auto& [name, value] : named) add_keyword(kwargs, name, value);
  return take_as_tuple(args);
}

void GraphDecoder::name_result(PyObject* node, std::string_view name) {
  Defined& entry = current().defined(name);
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
  set_value(node, value_of(entry, name));
}

bool GraphDecoder::returns_itself(const Value& node) const {
  const Value& single = field(node, Field::Node_is_hop_single_tensor_return);
  return single.kind != ValueKind::kBool || single.integer != 0;
}

void GraphDecoder::results(const Value& value, const Operator& target, PyObject* node,
                           const Metadata& metadata) {
  auto parts = children_of(value, Field::Node_outputs);
  if (parts.empty()) {  // a call of a subgraph without results returns an empty tuple
    if (target.kind == OperatorKind::kHigherOrder) set_value(node, fx::no_args);
    return;
  }
  if (parts.size() == 1) {
    const Field kind = tag_of(parts[0]);
    if (kind == Field::Argument_as_none) {
      set_value(node, Py_None);
      return name_unused(node);
    }
    if (target.kind != OperatorKind::kHigherOrder || returns_itself(value)) {
      if (const auto name = name_in(parts[0])) return name_result(node, *name);
      const Value& content = content_of(parts[0]);
      if (content.kind != ValueKind::kList) {
        raise(symbols.serialize_error, "the result of node %R does not have a name", node);
      }
      parts = children_of(content);
    }
  }
  multiple_results(parts, node, metadata);
}

void GraphDecoder::multiple_results(std::span<const Value> parts, PyObject* node,
                                    const Metadata& metadata) {
  const Ref values = take_apart(node, parts, metadata);
  set_value(node, Ref::steal(PyList_AsTuple(values.get())).get());
  const Ref name = fx::node_field(node, fx::symbols.node_name);
  current().defined(utf8(name.get())).node = Ref::borrow(node);
}

Ref GraphDecoder::take_apart(PyObject* node, std::span<const Value> parts,
                             const Metadata& metadata) {
  Ref values = Ref::steal(PyList_New(0));
  for (size_t i = 0; i < parts.size(); ++i) {
    check(PyList_Append(values.get(), take(node, i, parts[i], metadata).get()));
  }
  return values;
}

Ref GraphDecoder::take(PyObject* node, size_t index, const Value& part, const Metadata& metadata) {
  const core::Budget::Level level(*budget_, "the results of a node");
  charge(kNodeBytes);
  if (const auto name = name_in(part)) {
    PyObject* taken = current().writer().getitem(node, index, {}, current().candidate(*name));
    name_result(taken, *name);
    const Ref meta = fx::node_field(taken, fx::symbols.node_meta);
    add_metadata(metadata, meta.get());
    return Ref::borrow(dict_get(meta.get(), fx::names.val));
  }
  const bool is_an_argument = is_argument(part);
  if (is_an_argument && tag_of(part) == Field::Argument_as_none) {
    PyObject* taken = current().writer().getitem(node, index, {}, current().candidate("as_none"));
    set_value(taken, Py_None);
    add_metadata(metadata, fx::node_field(taken, fx::symbols.node_meta).get());
    return Ref::borrow(Py_None);
  }
  if (is_an_argument && content_of(part).kind == ValueKind::kList) {
    PyObject* taken = current().writer().getitem(node, index, {});
    Ref values = take_apart(taken, children_of(content_of(part)), metadata);
    add_metadata(metadata, fx::node_field(taken, fx::symbols.node_meta).get());
    set_value(taken, values.get());
    return values;
  }
  raise(symbols.serialize_error, "result %zu of node %R does not have a name", index, node);
}

// Renames a node that has no result, as torch does: to the name of its target plus "_unused".
void GraphDecoder::name_unused(PyObject* node) {
  fx::NameWriter& writer = current().names();
  const Ref target = fx::node_field(node, fx::symbols.node_target);
  std::string wanted(writer.text(writer.candidate_for_target(target.get())));
  wanted += "_unused";
  const Ref now = fx::node_field(node, fx::symbols.node_name);
  if (utf8(now.get()) == wanted) return;
  PyObject* name = writer.string(writer.table().create(writer.intern(wanted)));
  current().writer().rename(node, name);
}

}  // namespace fxpress::serde
