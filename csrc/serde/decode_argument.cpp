
#include "fx/arguments.h"
#include "fx/symbols.h"
#include "py/calls.h"
#include "py/containers.h"
#include "serde/graph_decoder.h"
#include "serde/symbols.h"

namespace fxpress::serde {

using core::Op;

namespace {

// The fields of the union Argument, with the same values as in `Field`. -Wswitch reports a field
// that a switch over this enum omits; a switch over `Field` would need the fields of all types.
enum class ArgumentKind : uint16_t {
#define FXPRESS_TYPE(name)
#define FXPRESS_FIELD(type, name, rule)
#define FXPRESS_ARGUMENT(name, rule) name = static_cast<uint16_t>(Field::Argument_##name),
#include "schema/schema.def"
#undef FXPRESS_FIELD
#undef FXPRESS_TYPE
};

}  // namespace

void GraphDecoder::clear_mentions() {
  mentions_.nodes.clear();
  mentions_.graphs.clear();
}

Ref GraphDecoder::node_reference(std::string_view name) {
  PyObject* node = current().node_named(name);
  mentions_.nodes.push_back(node);
  return Ref::borrow(node);
}

Ref GraphDecoder::argument(const Value& value) {
  const Value& content = content_of(value);
  switch (static_cast<ArgumentKind>(tag_of(value))) {
    case ArgumentKind::as_none:
      return Ref::borrow(Py_None);
    case ArgumentKind::as_tensor:
      return node_reference(text_of(content, Field::TensorArgument_name));
    case ArgumentKind::as_int:
    case ArgumentKind::as_float:
    case ArgumentKind::as_bool:
    case ArgumentKind::as_string:
      return scalar_of(content);
    case ArgumentKind::as_sym_int:
    case ArgumentKind::as_sym_float:
    case ArgumentKind::as_sym_bool:
    case ArgumentKind::as_optional_tensor:
      return choice(content);
    case ArgumentKind::as_scalar_type:
      return from_table(dtypes_, content, "dtype");
    case ArgumentKind::as_memory_format:
      return from_table(memory_formats_, content, "memory format");
    case ArgumentKind::as_layout:
      return from_table(layouts_, content, "layout");
    case ArgumentKind::as_device:
      return Ref::borrow(device_of(content).object.get());
    case ArgumentKind::as_complex:
      return Ref::steal(PyComplex_FromDoubles(real_of(field(content, Field::ComplexValue_real)),
                                              real_of(field(content, Field::ComplexValue_imag))));
    case ArgumentKind::as_graph:
      return graph_argument(content);
    case ArgumentKind::as_custom_obj:
      return object(content);
    case ArgumentKind::as_operator:
      return Ref::borrow(operators_.get(text_of(content), resolve_.ptr()).object.get());
    case ArgumentKind::as_string_to_argument:
      return dict(content);
    case ArgumentKind::as_tensors:
      return tensor_list(content);
    case ArgumentKind::as_ints:
    case ArgumentKind::as_floats:
    case ArgumentKind::as_bools:
    case ArgumentKind::as_strings:
      return plain_list(content);
    case ArgumentKind::as_sym_ints:
    case ArgumentKind::as_sym_floats:
    case ArgumentKind::as_sym_bools:
    case ArgumentKind::as_optional_tensors:
      return list(content, [&](const Value& item) { return choice(item); });
    case ArgumentKind::as_nested_tensors:
      return list(content, [&](const Value& item) { return tensor_list(item); });
    case ArgumentKind::as_float_lists:
      return list(content, [&](const Value& item) { return plain_list(item); });
    case ArgumentKind::as_int_lists:  // grids of Triton kernels are lists of tuples
      return list(content, [&](const Value& item) {
        std::vector<Ref> numbers =
            items(item, [&](const Value& number) { return scalar_of(number); });
        return take_as_tuple(numbers);
      });
  }
  raise(symbols.unsupported_error, "fxpress does not support arguments of type %s",
        document_->schema().type(value.type).fields[value.count].name.c_str());
}

// Reads a union that contains the name of a node or a constant, such as SymIntArgument.
Ref GraphDecoder::choice(const Value& value) {
  if (const auto name = name_in(value)) return node_reference(*name);
  if (tag_of(value) == Field::OptionalTensorArgument_as_none) return Ref::borrow(Py_None);
  Ref constant = scalar_of(content_of(value));
  if (!constant)
    raise(symbols.serialize_error, "expected a name or a constant as an argument, found %s",
          document_->schema().type(value.type).fields[value.count].name.c_str());
  return constant;
}

template <class Item>
std::vector<Ref> GraphDecoder::items(const Value& list, Item&& item) {
  std::vector<Ref> result;
  charge(list.count, kSlotBytes);
  for (const Value& value : children_of(list)) result.push_back(item(value));
  return result;
}

template <class Item>
Ref GraphDecoder::list(const Value& list, Item&& item) {
  std::vector<Ref> result = items(list, item);
  return fx::new_immutable_list(result);
}

Ref GraphDecoder::tensor_list(const Value& list) {
  return this->list(list, [&](const Value& tensor) {
    return node_reference(text_of(tensor, Field::TensorArgument_name));
  });
}

// Reads a list of ints, floats, bools or strings.
Ref GraphDecoder::plain_list(const Value& list) {
  return this->list(list, [&](const Value& item) { return scalar_of(item); });
}

// Reads a float, which may be an int in a document that was made from Python objects.
double GraphDecoder::real_of(const Value& value) const {
  return value.kind == ValueKind::kReal ? value.real : serde::real_of(scalar_of(value).get());
}

Ref GraphDecoder::dict(const Value& map) {
  const core::Budget::Level level(*budget_, "an argument of a node");
  charge(kDictBytes + map.count * kSlotBytes);
  Ref result = call(fx::symbols.immutable_dict_type);
  const auto entries = children_of(map);
  for (size_t i = 0; i < entries.size(); i += 2) {
    check(PyDict_SetItem(result.get(), new_text(text_of(entries[i])).get(),
                         argument(entries[i + 1]).get()));
  }
  return result;
}

Ref GraphDecoder::object(const Value& value) {
  const std::string_view name = text_of(value, Field::CustomObjArgument_name);
  if (current().defined(name).node) return node_reference(name);
  const Ref key = new_text(name);
  PyObject* object = dict_get(constants_.ptr(), key.get());
  if (object == nullptr) {
    raise(symbols.serialize_error, "the file does not contain an object named %R", key.get());
  }
  has_objects_ = true;
  return Ref::borrow(object);
}

Ref GraphDecoder::graph_argument(const Value& value) {
  const core::Budget::Level level(*budget_, "nested graphs");
  if (!graphs_allowed_) raise(symbols.serialize_error, "an argument of the signature is a graph");
  const std::string_view target = text_of(value, Field::GraphArgument_name);
  const Ref name = new_text(target);
  Ref module;
  {
    const core::ScopedValue outer(mentions_, {});
    open_graph();
    struct Leave {
      GraphDecoder& decoder;
      ~Leave() { decoder.leave_graph(); }
    } const leaves{*this};
    module = graph_module(field(value, Field::GraphArgument_graph));
  }

  OpenGraph& graph = current();
  call_method(graph.root(), fx::names.register_module, name, module);
  const fx::NewNode made{Op::kGetAttr, name.get(), graph.candidate(target), Py_None};
  PyObject* node = graph.writer().leaf(made, Ref::borrow(fx::no_args), {});
  mentions_.nodes.push_back(node);
  mentions_.graphs.push_back(node);
  return Ref::borrow(node);
}

}  // namespace fxpress::serde
