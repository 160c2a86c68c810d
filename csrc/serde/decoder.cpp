#include "serde/decoder.h"

#include <algorithm>
#include <iterator>

#include "core/check.h"
#include "py/gc_pause.h"

namespace fxpress::serde {

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

Decoder::Decoder(const DecodeContext& context)
    : file_{context},
      graphs_(context.values),
      values_(file_),
      metadata_(file_),
      arguments_(file_, graphs_, values_, graph_),
      results_(file_, graphs_, values_, metadata_),
      nodes_(file_, graphs_, arguments_, results_, metadata_),
      graph_(file_, graphs_, arguments_, results_, nodes_),
      signatures_(file_, arguments_, values_) {}

Ref Decoder::value(uint64_t scope, std::string_view name) {
  Defined unknown;
  Defined* known = graphs_.of(scope).find(name);
  return Ref::borrow(values_.value_of(known != nullptr ? *known : unknown, name));
}

Ref Decoder::program() {
  const GcPause pause;
  check_root(Type::ExportedProgram);
  const Value& whole = file_.field(file_.document->root(), Field::ExportedProgram_graph_module);
  file_.signature = signatures_.signature(file_.field(whole, Field::GraphModule_signature));
  Ref module;
  {
    const ArgumentDecoder::GraphsAllowed allowed(arguments_);
    module = graph_.graph_module(file_.field(whole, Field::GraphModule_graph));
  }
  const Ref calls = signatures_.calls(file_.field(whole, Field::GraphModule_module_call_graph));
  return Ref::steal(PyTuple_Pack(4, module.get(), file_.signature.get(), calls.get(),
                                 arguments_.has_objects() ? Py_True : Py_False));
}

// The root of the document is the part. `extra` by kind:
//   node, inputs      a target as resolve_target() describes it
//   outputs           (such a target, the node that returns them)
//   multiple_outputs  the node that returns them
//   result            (the node that returns it among others, its place)
Ref Decoder::part(std::string_view kind, PyObject* extra) {
  const GcPause pause;
  const Value& value = file_.document->root();
  const auto known = std::find_if(std::begin(kParts), std::end(kParts),
                                  [&](const PartKind& each) { return each.name == kind; });
  FXPRESS_CHECK(known != std::end(kParts), "parts of this kind are not known");
  check_root(known->type);
  if (kind == "tensor") return values_.tensor(value);
  if (kind == "input_spec") return signatures_.input_spec(value);
  if (kind == "output_spec") return signatures_.output_spec(value);
  if (kind == "argument_spec") return signatures_.argument_spec(value);
  if (kind == "signature") return signatures_.signature(value);
  if (kind == "call_signature") return signatures_.call_signature(value);
  if (kind == "metadata") {
    Ref result = Ref::steal(PyDict_New());
    metadata_.add(metadata_.read(file_.field(value, Field::Node_metadata)), result.get());
    return result;
  }

  // Kinds that may add nodes.
  graphs_.current().writer().resume();
  const ArgumentDecoder::GraphsAllowed allowed(arguments_);
  arguments_.clear_mentions();
  Ref result;
  try {
    result = add_part(kind, value, extra);
  } catch (...) {
    graphs_.current().writer().finish();
    throw;
  }
  graphs_.current().writer().finish();
  return result;
}

// The types of documents are the callers' choice, and fields are not looked up by name.
void Decoder::check_root(Type type) const {
  const Value& root = file_.document->root();
  const bool has_type = root.kind == ValueKind::kRecord || root.kind == ValueKind::kUnion;
  if (has_type && root.type == static_cast<uint16_t>(type)) return;
  const auto name_of = [&](uint16_t id) { return file_.document->schema().type(id).name.c_str(); };
  raise(PyExc_TypeError, "a %s is needed, not %s", name_of(static_cast<uint16_t>(type)),
        has_type ? name_of(root.type) : "a plain value");
}

Ref Decoder::add_part(std::string_view kind, const Value& value, PyObject* extra) {
  const auto item = [&](Py_ssize_t i) { return PyTuple_GET_ITEM(extra, i); };
  if (kind == "argument") return arguments_.argument(value);
  if (kind == "inputs") {
    Ref kwargs = Ref::steal(PyDict_New());
    const Ref args = nodes_.arguments(file_.children(file_.field(value, Field::Node_inputs)),
                                      TargetTable::described(extra), kwargs);
    return Ref::steal(PyTuple_Pack(2, args.get(), kwargs.get()));
  }
  if (kind == "node") return Ref::borrow(nodes_.node(value, TargetTable::described(extra)));
  if (kind == "outputs") {
    results_.results(value, TargetTable::described(item(0)), item(1),
                     metadata_.read(file_.field(value, Field::Node_metadata)));
    return Ref::borrow(Py_None);
  }
  if (kind == "multiple_outputs") {
    auto parts = file_.children(file_.field(value, Field::Node_outputs));
    if (parts.size() == 1) parts = file_.children(file_.content(parts[0]));
    results_.multiple_results(parts, extra,
                              metadata_.read(file_.field(value, Field::Node_metadata)));
    return Ref::borrow(Py_None);
  }
  if (kind == "result") {
    const size_t place = PyLong_AsSize_t(item(1));
    if (PyErr_Occurred() != nullptr) throw_python_error();
    return results_.take(item(0), place, value, {});
  }
  graph_.write(value);
  return Ref::borrow(graphs_.current().graph());
}

}  // namespace fxpress::serde
