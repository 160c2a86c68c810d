#include <algorithm>

#include "fx/containers.h"
#include "fx/symbols.h"
#include "py/containers.h"
#include "serde/decoder.h"
#include "serde/scalars.h"
#include "serde/symbols.h"

namespace fxpress::fx::serde {

using core::Op;
using ::fxpress::schema::Type;
using ::fxpress::schema::ValueKind;

namespace {

constexpr int64_t kPositional = 1;  // ArgumentKind in the schema
constexpr int64_t kKeyword = 2;

void add_keyword(Ref& kwargs, std::string_view name, const Ref& value) {
  if (kwargs.get() == no_kwargs) {
    kwargs = Ref::steal(PyObject_CallNoArgs(fx::symbols.immutable_dict_type));
  }
  check(PyDict_SetItem(kwargs.get(), new_text(name).get(), value.get()));
}

// A float; objects may have an integer in its place.
double real_of(const Document& document, const Value& value) {
  if (value.kind == ValueKind::kReal) return value.real;
  const double result = PyFloat_AsDouble(scalar(document, value).get());
  if (result == -1.0 && PyErr_Occurred() != nullptr) throw_python_error();
  return result;
}

}  // namespace

int64_t Decoder::kind_of(const Value& input) const {
  const Value& kind = field(input, Field::NamedArgument_kind);
  return kind.kind == ValueKind::kInt ? kind.integer : 0;
}

// Returns the positional ones.
Ref Decoder::node_arguments(std::span<const Value> inputs, const Target& target, Ref& kwargs) {
  return target.kind == Target::Kind::kSchema ? schema_arguments(inputs, target, kwargs)
                                              : arguments(inputs, target, kwargs);
}

// Arguments of what has no schema: returns the positional ones.
Ref Decoder::arguments(std::span<const Value> inputs, const Target& target, Ref& kwargs) {
  std::vector<Ref> args;
  for (const Value& input : inputs) {
    Ref value = argument(field(input, Field::NamedArgument_arg));
    const std::string_view name = text(input, Field::NamedArgument_name);
    if (target.kind == Target::Kind::kSymbolic || name.empty() || kind_of(input) == kPositional) {
      args.push_back(std::move(value));
    } else {
      add_keyword(kwargs, name, value);
    }
  }
  return take_as_tuple(args);
}

// Arguments of an operator, in the order of its schema.
Ref Decoder::schema_arguments(std::span<const Value> inputs, const Target& target, Ref& kwargs) {
  std::vector<Ref> values;
  std::vector<size_t> places(target.arguments.size(), inputs.size());
  size_t next = 0;  // most files have the order of the schema
  for (size_t i = 0; i < inputs.size(); ++i) {
    const std::string_view name = text(inputs[i], Field::NamedArgument_name);
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
    values.push_back(argument(field(inputs[i], Field::NamedArgument_arg)));
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

Ref Decoder::node_reference(std::string_view name) {
  PyObject* node = node_named(name);
  inputs_.push_back(node);
  return Ref::borrow(node);
}

Ref Decoder::argument(const Value& value) {
  const Field kind = document_->tag(value);
  const Value& content = document_->content(value);
  switch (kind) {
    case Field::Argument_as_none:
      return Ref::borrow(Py_None);
    case Field::Argument_as_tensor:
      return node_reference(text(content, Field::TensorArgument_name));
    case Field::Argument_as_int:
    case Field::Argument_as_float:
    case Field::Argument_as_bool:
    case Field::Argument_as_string:
      return scalar(*document_, content);
    case Field::Argument_as_sym_int:
    case Field::Argument_as_sym_float:
    case Field::Argument_as_sym_bool:
    case Field::Argument_as_optional_tensor:
      return choice_argument(content);
    case Field::Argument_as_scalar_type:
      return from_table(dtypes_, content, "dtype");
    case Field::Argument_as_memory_format:
      return from_table(memory_formats_, content, "memory format");
    case Field::Argument_as_layout:
      return from_table(layouts_, content, "layout");
    case Field::Argument_as_device:
      return Ref::borrow(device(content).object.get());
    case Field::Argument_as_complex:
      return Ref::steal(
          PyComplex_FromDoubles(real_of(*document_, field(content, Field::ComplexValue_real)),
                                real_of(*document_, field(content, Field::ComplexValue_imag))));
    case Field::Argument_as_graph:
      return graph_argument(content);
    case Field::Argument_as_custom_obj:
      return object_argument(content);
    case Field::Argument_as_operator:
      return Ref::borrow(targets_.get(text(content)).object.get());
    case Field::Argument_as_string_to_argument:
      return dict_argument(content);
    case Field::kUnknown:
      raise(symbols.unsupported_error, "fxpress does not know this kind of argument: %s",
            document_->schema().type(value.type).fields[value.count].name.c_str());
    default:
      return list_argument(kind, content);
  }
}

// Unions of a name and a constant.
Ref Decoder::choice_argument(const Value& value) {
  if (const auto name = name_in(value)) return node_reference(*name);
  if (document_->tag(value) == Field::OptionalTensorArgument_as_none) return Ref::borrow(Py_None);
  Ref constant = scalar(*document_, document_->content(value));
  if (!constant) raise(symbols.serialize_error, "a value of the graph has no name");
  return constant;
}

Ref Decoder::list_argument(Field kind, const Value& list) {
  std::vector<Ref> items;
  charge(list.count, kSlotBytes);
  for (const Value& item : document_->children(list)) items.push_back(list_item(kind, item));
  return new_immutable_list(items);
}

Ref Decoder::list_item(Field kind, const Value& item) {
  switch (item.kind) {
    case ValueKind::kRecord:
      return node_reference(text(item, Field::TensorArgument_name));
    case ValueKind::kUnion:
      return choice_argument(item);
    case ValueKind::kList: {  // grids of Triton kernels are lists of tuples
      if (kind != Field::Argument_as_int_lists) return list_argument(kind, item);
      std::vector<Ref> numbers;
      charge(item.count, kSlotBytes);
      for (const Value& number : document_->children(item)) {
        numbers.push_back(scalar(*document_, number));
      }
      return take_as_tuple(numbers);
    }
    default:
      return scalar(*document_, item);
  }
}

Ref Decoder::dict_argument(const Value& map) {
  const core::Budget::Level level(*context_.budget, "an argument of a node");
  charge(kDictBytes + map.count * kSlotBytes);
  Ref result = Ref::steal(PyObject_CallNoArgs(fx::symbols.immutable_dict_type));
  const auto entries = document_->children(map);
  for (size_t i = 0; i < entries.size(); i += 2) {
    check(PyDict_SetItem(result.get(), new_text(text(entries[i])).get(),
                         argument(entries[i + 1]).get()));
  }
  return result;
}

// An object that is an input of the graph, or one that the file has beside it.
Ref Decoder::object_argument(const Value& value) {
  const std::string_view name = text(value, Field::CustomObjArgument_name);
  if (defined(name).node) return node_reference(name);
  const Ref key = new_text(name);
  PyObject* object = dict_get(context_.constants, key.get());
  if (object == nullptr) {
    raise(symbols.serialize_error, "the file has no object named %R", key.get());
  }
  has_objects_ = true;
  return Ref::borrow(object);
}

Ref Decoder::graph_argument(const Value& value) {
  const core::Budget::Level level(*context_.budget, "the graphs within a graph");
  if (!is_open_) raise(symbols.serialize_error, "the signature has a graph as an argument");
  const Ref name = new_text(text(value, Field::GraphArgument_name));
  const std::vector<PyObject*> inputs = std::move(inputs_);
  const std::vector<PyObject*> graphs = std::move(graphs_);
  Ref module;
  {
    open();
    struct Close {
      Decoder& decoder;
      ~Close() { decoder.close(); }
    } const closes{*this};
    module = graph_module(field(value, Field::GraphArgument_graph));
  }
  inputs_ = inputs;
  graphs_ = graphs;
  PyObject* arguments[] = {state_->root.get(), name.get(), module.get()};
  Ref::steal(PyObject_VectorcallMethod(names.register_module, arguments, 3, nullptr));
  const NewNode made{Op::kGetAttr, name.get(), candidate(text(value, Field::GraphArgument_name)),
                     Py_None};
  PyObject* node = state_->writer.leaf(made, Ref::borrow(no_args), {});
  inputs_.push_back(node);
  graphs_.push_back(node);
  return Ref::borrow(node);
}

}  // namespace fxpress::fx::serde
