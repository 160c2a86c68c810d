#include "core/check.h"
#include "fx/graph_module.h"
#include "py/containers.h"
#include "py/gc_pause.h"
#include "serde/decoder.h"
#include "serde/scalars.h"
#include "serde/symbols.h"

namespace fxpress::fx::serde {

using core::Op;
using ::fxpress::schema::ValueKind;

Decoder::State::State(uint64_t number)
    : scope(number),
      name_writer(NameWriter::Forbidden::kForNodes),
      writer(name_writer),
      root(Ref::steal(PyObject_CallNoArgs(fx::symbols.module_type))) {}

Decoder::Decoder(const DecodeContext& context) : context_(context) {
  const auto by_number = [](PyObject* table, std::vector<Ref>& result) {
    PyObject* key = nullptr;
    PyObject* number = nullptr;
    for (Py_ssize_t at = 0; PyDict_Next(table, &at, &key, &number) != 0;) {
      const size_t place = PyLong_AsSize_t(number);
      if (PyErr_Occurred() != nullptr) throw_python_error();
      if (place >= result.size()) result.resize(place + 1);
      result[place] = Ref::borrow(key);
    }
  };
  by_number(symbols.scalar_types, dtypes_);
  by_number(symbols.layouts, layouts_);
  by_number(symbols.memory_formats, memory_formats_);
  by_number(symbols.input_kinds, input_kinds_);
  by_number(symbols.output_kinds, output_kinds_);
}

void Decoder::open() {
  Ref::steal(PyObject_CallMethodNoArgs(context_.values, names.begin_graph));
  state_ = &states_.emplace_back(++scopes_);
}

void Decoder::close() {
  FXPRESS_CHECK(states_.size() > 1, "no graph within another is open");
  leave();
  state_ = &states_.back();
}

void Decoder::clear() {
  while (!states_.empty()) leave();
  open();
}

// Also while an error is on its way.
void Decoder::leave() noexcept {
  states_.pop_back();
  PyObject* none = PyObject_CallMethodNoArgs(context_.values, names.leave_graph);
  if (none == nullptr) PyErr_WriteUnraisable(context_.values);
  Py_XDECREF(none);
}

Ref Decoder::program() {
  const GcPause pause;
  check_root(::fxpress::schema::Type::ExportedProgram);
  const Value& whole = field(document_->root(), Field::ExportedProgram_graph_module);
  signature_ = signature(field(whole, Field::GraphModule_signature));
  is_open_ = true;
  Ref module = graph_module(field(whole, Field::GraphModule_graph));
  is_open_ = false;
  const Ref calls = this->calls(field(whole, Field::GraphModule_module_call_graph));
  return Ref::steal(PyTuple_Pack(4, module.get(), signature_.get(), calls.get(),
                                 has_objects_ ? Py_True : Py_False));
}

Ref Decoder::graph_module(const Value& graph) {
  write_graph(graph);
  state_->writer.finish();
  return make_graph_module_of(state_->root.get(), state_->writer.graph());
}

void Decoder::write_graph(const Value& graph) {
  charge(kGraphBytes);
  read_tables(graph);
  size_t position = 0;
  for (const Value& argument : document_->children(field(graph, Field::Graph_inputs))) {
    input(argument, position++);
  }
  for (const Value& value : document_->children(field(graph, Field::Graph_nodes))) {
    poll_signals(steps_++);
    checked_node(value);
  }
  outputs(graph);
  Ref::steal(PyObject_CallMethodOneArg(context_.values, names.end_graph, state_->writer.graph()));
}

void Decoder::read_tables(const Value& graph) {
  const auto read = [&](Field name, Table table) {
    const Value& map = field(graph, name);
    const auto entries = document_->children(map);
    for (size_t i = 0; i < entries.size(); i += 2) {
      Defined& entry = defined(text(entries[i]));
      entry.meta = &entries[i + 1];
      entry.document = document_;
      entry.table = table;
    }
  };
  read(Field::Graph_tensor_values, Table::kTensor);
  read(Field::Graph_sym_int_values, Table::kSymInt);
  read(Field::Graph_sym_float_values, Table::kSymFloat);
  read(Field::Graph_sym_bool_values, Table::kSymBool);
  read(Field::Graph_custom_obj_values, Table::kCustomObject);
}

Decoder::Defined& Decoder::defined(std::string_view name) {
  const size_t id = state_->pool.intern(name).value();
  if (id >= state_->defined.size()) state_->defined.resize(id + 1);
  return state_->defined[id];
}

PyObject* Decoder::node_named(std::string_view name) {
  PyObject* node = defined(name).node.get();
  if (node == nullptr) {
    raise(symbols.serialize_error, "no value of the graph is named %R", new_text(name).get());
  }
  return node;
}

core::StringId Decoder::candidate(std::string_view name) {
  for (const char c : name) {
    if ((static_cast<unsigned char>(c) & 0x80u) != 0) {
      return state_->name_writer.candidate(new_text(name).get());
    }
  }
  return state_->name_writer.intern(name);
}

// Gives a node the name it has in the file, and its value. The namespace of the graph keeps the
// name that the node was made with, as in torch.
void Decoder::name_node(PyObject* node, std::string_view name) {
  Defined& entry = defined(name);
  if (entry.node) {
    raise(symbols.serialize_error, "Node %U has already been deserialized before.",
          new_text(name).get());
  }
  const Ref text = new_text(name);
  const Ref now = node_field(node, fx::symbols.node_name);
  if (PyUnicode_Compare(now.get(), text.get()) != 0) {
    set_node_field(node, fx::symbols.node_name, text.get());
  }
  entry.node = Ref::borrow(node);
  PyObject* value = value_of(entry, name);
  const Ref meta = node_field(node, fx::symbols.node_meta);
  check(PyDict_SetItem(meta.get(), fx::names.val, value));
}

void Decoder::input(const Value& argument, size_t position) {
  charge(kNodeBytes);
  const auto placeholder = [&](PyObject* name) {
    NewNode node{Op::kPlaceholder, name, state_->name_writer.candidate_for_target(name), Py_None};
    return state_->writer.leaf(node, Ref::borrow(no_args), {});
  };
  switch (document_->tag(argument)) {
    case Field::Argument_as_tensor:
    case Field::Argument_as_custom_obj:
    case Field::Argument_as_sym_int:
    case Field::Argument_as_sym_float:
    case Field::Argument_as_sym_bool: {
      const auto name = name_in(argument);
      if (!name) raise(symbols.serialize_error, "input %zu of a graph is a constant", position);
      return name_node(placeholder(new_text(*name).get()), *name);
    }
    case Field::Argument_as_int:
    case Field::Argument_as_float:
    case Field::Argument_as_bool:
    case Field::Argument_as_none:
    case Field::Argument_as_string: {
      const Ref specs =
          signature_ ? get_attr(signature_.get(), names.input_specs) : Ref::steal(PyList_New(0));
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
      const Ref meta = node_field(node, fx::symbols.node_meta);
      check(PyDict_SetItem(meta.get(), fx::names.val, this->argument(argument).get()));
      return;
    }
    default:
      raise(symbols.serialize_error, "Invalid input type: input %zu of a graph", position);
  }
}

void Decoder::checked_node(const Value& value) {
  try {
    node(value, targets_.get(text(value, Field::Node_target)));
  } catch (pybind11::error_already_set& error) {
    if (!error.matches(PyExc_Exception)) throw;
    const Ref failed = context_.classes->make(*document_, value);
    PyObject* arguments[] = {failed.get(), error.value().ptr()};
    Ref::steal(PyObject_Vectorcall(symbols.reading_failed, arguments, 2, nullptr));
  }
}

// The name that a node asks for: its own, or in older files that of its only result.
core::StringId Decoder::candidate_of(const Value& node, const Target& target) {
  const Value& name = field(node, Field::Node_name);
  if (name.kind == ValueKind::kString && name.count > 0) return candidate(text(name));
  const auto results = document_->children(field(node, Field::Node_outputs));
  const bool single = target.kind == Target::Kind::kSymbolic ||
                      (target.kind == Target::Kind::kSchema && target.single_tensor) ||
                      (target.kind == Target::Kind::kHigherOrder && returns_itself(node));
  if (single && results.size() == 1) {
    if (const auto result = name_in(results[0])) return candidate(*result);
  }
  return state_->name_writer.candidate_for_target(target.object.get());
}

// The only result of a higher-order operator may be the value itself, or a tuple with it. Old files
// don't say: there it is the value.
bool Decoder::returns_itself(const Value& node) const {
  const Value& single = field(node, Field::Node_is_hop_single_tensor_return);
  return single.kind != ValueKind::kBool || single.integer != 0;
}

PyObject* Decoder::node(const Value& value, const Target& target) {
  charge(kNodeBytes);
  const auto given = document_->children(field(value, Field::Node_inputs));
  inputs_.clear();
  graphs_.clear();
  Ref kwargs = Ref::borrow(no_kwargs);
  Ref args = node_arguments(given, target, kwargs);
  const std::vector<PyObject*> graphs = std::move(graphs_);
  PyObject* node = state_->writer.create(
      {Op::kCallFunction, target.object.get(), candidate_of(value, target), Py_None},
      std::move(args), std::move(kwargs), inputs_, {});
  const Metadata metadata = this->metadata(field(value, Field::Node_metadata));
  results(value, target, node, metadata);
  const Ref meta = node_field(node, fx::symbols.node_meta);
  add_metadata(metadata, meta.get());
  if (dict_get(meta.get(), fx::names.nn_module_stack) == nullptr) {
    check(PyDict_SetItem(meta.get(), fx::names.nn_module_stack, Ref::steal(PyDict_New()).get()));
  }
  // Graphs as arguments have no metadata of their own in the file.
  for (PyObject* graph : graphs) {
    add_metadata(metadata, node_field(graph, fx::symbols.node_meta).get());
  }
  if (target.constrains) {
    PyObject* arguments[] = {context_.values, node};
    Ref::steal(PyObject_VectorcallMethod(names.constrain, arguments, 2, nullptr));
  }
  return node;
}

PyObject* Decoder::value_of_node(PyObject* node) {
  PyObject* value = dict_get(node_field(node, fx::symbols.node_meta).get(), fx::names.val);
  if (value == nullptr) {
    raise(symbols.serialize_error, "the graph returns %R, which has no value", node);
  }
  return value;
}

void Decoder::outputs(const Value& graph) {
  const auto stored = document_->children(field(graph, Field::Graph_outputs));
  std::vector<Ref> results;
  std::vector<Ref> values;
  inputs_.clear();
  for (const Value& output : stored) {
    results.push_back(argument(output));
    PyObject* result = results.back().get();
    values.push_back(Ref::borrow(is_node(result) ? value_of_node(result) : result));
  }
  Ref result;
  Ref value;
  if (field(graph, Field::Graph_is_single_tensor_return).integer != 0) {
    if (results.size() != 1 || !is_node(results[0].get())) {
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
  const NewNode node{Op::kOutput, fx::symbols.output,
                     state_->name_writer.candidate_for_target(fx::symbols.output), Py_None};
  state_->writer.create(node, std::move(args), Ref::borrow(no_kwargs), inputs_, std::move(meta));
}

}  // namespace fxpress::fx::serde
