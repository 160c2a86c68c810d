#include "serde/decode_argument.h"

#include <utility>

#include "fx/containers.h"
#include "fx/symbols.h"
#include "py/containers.h"
#include "serde/argument_kind.h"
#include "serde/decode_graph.h"
#include "serde/scalars.h"
#include "serde/symbols.h"

namespace fxpress::serde {

using core::Op;

namespace {

// A float; objects may have an integer in its place.
double real_of(const Decoding& file, const Value& value) {
  if (value.kind == ValueKind::kReal) return value.real;
  const double result = PyFloat_AsDouble(file.scalar(value).get());
  if (result == -1.0 && PyErr_Occurred() != nullptr) throw_python_error();
  return result;
}

}  // namespace

void ArgumentDecoder::clear_mentions() {
  mentions_.nodes.clear();
  mentions_.graphs.clear();
}

Ref ArgumentDecoder::node_reference(std::string_view name) {
  PyObject* node = graphs_.current().node_named(name);
  mentions_.nodes.push_back(node);
  return Ref::borrow(node);
}

Ref ArgumentDecoder::argument(const Value& value) {
  const Value& content = file_.content(value);
  switch (argument_kind(*file_.document, value)) {
    case ArgumentKind::as_none:
      return Ref::borrow(Py_None);
    case ArgumentKind::as_tensor:
      return node_reference(file_.text(content, Field::TensorArgument_name));
    case ArgumentKind::as_int:
    case ArgumentKind::as_float:
    case ArgumentKind::as_bool:
    case ArgumentKind::as_string:
      return file_.scalar(content);
    case ArgumentKind::as_sym_int:
    case ArgumentKind::as_sym_float:
    case ArgumentKind::as_sym_bool:
    case ArgumentKind::as_optional_tensor:
      return choice(content);
    case ArgumentKind::as_scalar_type:
      return values_.dtype_of(content);
    case ArgumentKind::as_memory_format:
      return values_.memory_format_of(content);
    case ArgumentKind::as_layout:
      return values_.layout_of(content);
    case ArgumentKind::as_device:
      return values_.device_of(content);
    case ArgumentKind::as_complex:
      return complex_number(content);
    case ArgumentKind::as_graph:
      return graph(content);
    case ArgumentKind::as_custom_obj:
      return object(content);
    case ArgumentKind::as_operator:
      return Ref::borrow(file_.targets.get(file_.text(content)).object.get());
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
            items(item, [&](const Value& number) { return file_.scalar(number); });
        return take_as_tuple(numbers);
      });
  }
  raise(symbols.unsupported_error, "fxpress does not know this kind of argument: %s",
        file_.document->schema().type(value.type).fields[value.count].name.c_str());
}

// Reads a union of a name and a constant.
Ref ArgumentDecoder::choice(const Value& value) {
  if (const auto name = file_.name_in(value)) return node_reference(*name);
  if (file_.tag(value) == Field::OptionalTensorArgument_as_none) return Ref::borrow(Py_None);
  Ref constant = file_.scalar(file_.content(value));
  if (!constant) raise(symbols.serialize_error, "a value of the graph has no name");
  return constant;
}

template <class Item>
std::vector<Ref> ArgumentDecoder::items(const Value& list, Item&& item) {
  std::vector<Ref> result;
  file_.charge(list.count, kSlotBytes);
  for (const Value& value : file_.children(list)) result.push_back(item(value));
  return result;
}

template <class Item>
Ref ArgumentDecoder::list(const Value& list, Item&& item) {
  std::vector<Ref> result = items(list, item);
  return fx::new_immutable_list(result);
}

Ref ArgumentDecoder::tensor_list(const Value& list) {
  return this->list(list, [&](const Value& tensor) {
    return node_reference(file_.text(tensor, Field::TensorArgument_name));
  });
}

// Reads a list of numbers, truth values or texts.
Ref ArgumentDecoder::plain_list(const Value& list) {
  return this->list(list, [&](const Value& item) { return file_.scalar(item); });
}

Ref ArgumentDecoder::complex_number(const Value& value) const {
  return Ref::steal(
      PyComplex_FromDoubles(real_of(file_, file_.field(value, Field::ComplexValue_real)),
                            real_of(file_, file_.field(value, Field::ComplexValue_imag))));
}

Ref ArgumentDecoder::dict(const Value& map) {
  const core::Budget::Level level(*file_.context.budget, "an argument of a node");
  file_.charge(kDictBytes + map.count * kSlotBytes);
  Ref result = Ref::steal(PyObject_CallNoArgs(fx::symbols.immutable_dict_type));
  const auto entries = file_.children(map);
  for (size_t i = 0; i < entries.size(); i += 2) {
    check(PyDict_SetItem(result.get(), new_text(file_.text(entries[i])).get(),
                         argument(entries[i + 1]).get()));
  }
  return result;
}

Ref ArgumentDecoder::object(const Value& value) {
  const std::string_view name = file_.text(value, Field::CustomObjArgument_name);
  if (graphs_.current().defined(name).node) return node_reference(name);
  const Ref key = new_text(name);
  PyObject* object = dict_get(file_.context.constants, key.get());
  if (object == nullptr) {
    raise(symbols.serialize_error, "the file has no object named %R", key.get());
  }
  has_objects_ = true;
  return Ref::borrow(object);
}

Ref ArgumentDecoder::graph(const Value& value) {
  const core::Budget::Level level(*file_.context.budget, "the graphs within a graph");
  if (!graphs_allowed_) raise(symbols.serialize_error, "the signature has a graph as an argument");
  const std::string_view target = file_.text(value, Field::GraphArgument_name);
  const Ref name = new_text(target);
  Mentions outer = std::exchange(mentions_, {});
  Ref module;
  {
    graphs_.open();
    struct Close {
      OpenGraphs& graphs;
      ~Close() { graphs.close(); }  // NOLINT(bugprone-exception-escape): there is one to close
    } const closes{graphs_};
    module = graphs_within_.graph_module(file_.field(value, Field::GraphArgument_graph));
  }
  mentions_ = std::move(outer);
  OpenGraph& graph = graphs_.current();
  PyObject* arguments[] = {graph.root(), name.get(), module.get()};
  Ref::steal(PyObject_VectorcallMethod(names.register_module, arguments, 3, nullptr));
  const fx::NewNode made{Op::kGetAttr, name.get(), graph.candidate(target), Py_None};
  PyObject* node = graph.writer().leaf(made, Ref::borrow(fx::no_args), {});
  mentions_.nodes.push_back(node);
  mentions_.graphs.push_back(node);
  return Ref::borrow(node);
}

}  // namespace fxpress::serde
