#include "serde/decode_node.h"

#include <algorithm>

#include "fx/symbols.h"
#include "py/containers.h"
#include "serde/scalars.h"
#include "serde/symbols.h"

namespace fxpress::serde {

using core::Op;

namespace {

constexpr int64_t kPositional = 1;  // ArgumentKind in the schema
constexpr int64_t kKeyword = 2;

void add_keyword(Ref& kwargs, std::string_view name, const Ref& value) {
  if (kwargs.get() == fx::no_kwargs) {
    kwargs = Ref::steal(PyObject_CallNoArgs(fx::symbols.immutable_dict_type));
  }
  check(PyDict_SetItem(kwargs.get(), new_text(name).get(), value.get()));
}

}  // namespace

void NodeDecoder::checked_node(const Value& value) {
  try {
    node(value, file_.targets.get(file_.text(value, Field::Node_target)));
  } catch (pybind11::error_already_set& error) {
    if (!error.matches(PyExc_Exception)) throw;
    const Ref failed = file_.context.classes->make(*file_.document, value);
    PyObject* arguments[] = {failed.get(), error.value().ptr()};
    Ref::steal(PyObject_Vectorcall(symbols.reading_failed, arguments, 2, nullptr));
  }
}

// The name that a node asks for: its own, or in older files that of its only result.
core::StringId NodeDecoder::candidate_of(const Value& node, const Target& target) {
  const Value& name = file_.field(node, Field::Node_name);
  if (name.kind == ValueKind::kString && name.count > 0)
    return graphs_.current().candidate(file_.text(name));
  const auto results = file_.children(file_.field(node, Field::Node_outputs));
  const bool single = target.kind == Target::Kind::kSymbolic ||
                      (target.kind == Target::Kind::kSchema && target.single_tensor) ||
                      (target.kind == Target::Kind::kHigherOrder && results_.returns_itself(node));
  if (single && results.size() == 1) {
    if (const auto result = file_.name_in(results[0])) return graphs_.current().candidate(*result);
  }
  return graphs_.current().names().candidate_for_target(target.object.get());
}

PyObject* NodeDecoder::node(const Value& value, const Target& target) {
  file_.charge(kNodeBytes);
  const auto given = file_.children(file_.field(value, Field::Node_inputs));
  arguments_.clear_mentions();
  Ref kwargs = Ref::borrow(fx::no_kwargs);
  Ref args = arguments(given, target, kwargs);
  const std::vector<PyObject*> graphs = std::move(arguments_.mentions().graphs);
  PyObject* node = graphs_.current().writer().create(
      {Op::kCallFunction, target.object.get(), candidate_of(value, target), Py_None},
      std::move(args), std::move(kwargs), arguments_.mentions().nodes, {});
  const NodeMetadata metadata = metadata_.read(file_.field(value, Field::Node_metadata));
  results_.results(value, target, node, metadata);
  const Ref meta = fx::node_field(node, fx::symbols.node_meta);
  metadata_.add(metadata, meta.get());
  if (dict_get(meta.get(), fx::names.nn_module_stack) == nullptr) {
    check(PyDict_SetItem(meta.get(), fx::names.nn_module_stack, Ref::steal(PyDict_New()).get()));
  }
  // Graphs as arguments have no metadata of their own in the file.
  for (PyObject* graph : graphs) {
    metadata_.add(metadata, fx::node_field(graph, fx::symbols.node_meta).get());
  }
  if (target.constrains) {
    PyObject* arguments[] = {file_.context.values, node};
    Ref::steal(PyObject_VectorcallMethod(names.constrain, arguments, 2, nullptr));
  }
  return node;
}

int64_t NodeDecoder::kind_of(const Value& input) const {
  const Value& kind = file_.field(input, Field::NamedArgument_kind);
  return kind.kind == ValueKind::kInt ? kind.integer : 0;
}

Ref NodeDecoder::arguments(std::span<const Value> inputs, const Target& target, Ref& kwargs) {
  return target.kind == Target::Kind::kSchema ? schema_arguments(inputs, target, kwargs)
                                              : other_arguments(inputs, target, kwargs);
}

// Reads the arguments of a target that has no schema.
Ref NodeDecoder::other_arguments(std::span<const Value> inputs, const Target& target, Ref& kwargs) {
  std::vector<Ref> args;
  for (const Value& input : inputs) {
    Ref value = arguments_.argument(file_.field(input, Field::NamedArgument_arg));
    const std::string_view name = file_.text(input, Field::NamedArgument_name);
    if (target.kind == Target::Kind::kSymbolic || name.empty() || kind_of(input) == kPositional) {
      args.push_back(std::move(value));
    } else {
      add_keyword(kwargs, name, value);
    }
  }
  return take_as_tuple(args);
}

// Arguments of an operator, in the order of its schema.
Ref NodeDecoder::schema_arguments(std::span<const Value> inputs, const Target& target,
                                  Ref& kwargs) {
  std::vector<Ref> values;
  std::vector<size_t> places(target.arguments.size(), inputs.size());
  size_t next = 0;  // most files have the order of the schema
  for (size_t i = 0; i < inputs.size(); ++i) {
    const std::string_view name = file_.text(inputs[i], Field::NamedArgument_name);
    const auto has_name = [&](const TargetArgument& argument) { return argument.name == name; };
    auto found = std::find_if(target.arguments.begin() + static_cast<ptrdiff_t>(next),
                              target.arguments.end(), has_name);
    if (found == target.arguments.end()) {
      found = std::find_if(target.arguments.begin(), target.arguments.end(), has_name);
    }
    if (found == target.arguments.end()) {
      raise(symbols.serialize_error, "%R has no argument %R", target.object.get(),
            new_text(name).get());
    }
    const auto place = static_cast<size_t>(found - target.arguments.begin());
    places[place] = i;
    next = place + 1;
    values.push_back(arguments_.argument(file_.field(inputs[i], Field::NamedArgument_arg)));
  }
  std::vector<Ref> args;
  std::vector<std::pair<std::string_view, Ref>> named;
  for (size_t i = 0; i < places.size(); ++i) {
    const TargetArgument& declared = target.arguments[i];
    const bool given = places[i] < inputs.size();
    const int64_t kind = given ? kind_of(inputs[places[i]]) : 0;
    if (!given) {
      if (!declared.positional) continue;
      raise(symbols.serialize_error, "argument '%s' of %R is missing", declared.name.c_str(),
            target.object.get());
    }
    Ref value = std::move(values[places[i]]);
    const bool by_name = kind == kKeyword || (kind != kPositional && !declared.positional);
    if (!by_name) {
      args.push_back(std::move(value));
    } else if (declared.is_python_keyword) {  // those before it cannot be given by name either
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

}  // namespace fxpress::serde
