#include "serde/graph_decoder.h"

#include <algorithm>
#include <iterator>

#include "core/characters.h"
#include "core/check.h"
#include "fx/symbols.h"
#include "py/calls.h"
#include "py/gc_pause.h"
#include "serde/documents.h"
#include "serde/symbols.h"

namespace fxpress::serde {

namespace py = pybind11;

OpenGraph::OpenGraph(uint64_t scope)
    : scope_(scope),
      names_(fx::NameWriter::Forbidden::kForNodes),
      writer_(names_),
      root_(call(fx::symbols.module_type)) {}

Defined& OpenGraph::defined(std::string_view name) {
  const size_t id = pool_.intern(name).value();
  if (id >= defined_.size()) defined_.resize(id + 1);
  return defined_[id];
}

Defined* OpenGraph::find(std::string_view name) {
  const size_t id = pool_.intern(name).value();
  return id < defined_.size() ? &defined_[id] : nullptr;
}

PyObject* OpenGraph::node_named(std::string_view name) {
  PyObject* node = defined(name).node.get();
  if (node == nullptr) {
    raise(symbols.serialize_error, "the graph does not have a value named %R",
          new_text(name).get());
  }
  return node;
}

core::StringId OpenGraph::candidate(std::string_view name) {
  if (std::ranges::all_of(name, core::is_ascii)) return names_.intern(name);
  return names_.candidate(new_text(name).get());
}

Ref OpenGraph::nodes() const {
  Ref result = Ref::steal(PyDict_New());
  for (uint32_t i = 0; i < defined_.size(); ++i) {
    PyObject* node = defined_[i].node.get();
    if (node == nullptr) continue;
    check(PyDict_SetItem(result.get(), new_text(pool_.text(core::StringId(i))).get(), node));
  }
  return result;
}

Ref OpenGraph::value_names() const {
  Ref result = Ref::steal(PyList_New(0));
  for (uint32_t i = 0; i < defined_.size(); ++i) {
    if (defined_[i].meta == nullptr) continue;
    check(PyList_Append(result.get(), new_text(pool_.text(core::StringId(i))).get()));
  }
  return result;
}

namespace {

// Inverts {key: int}. Item i is the key of the value i, or empty if no key has this value.
std::vector<Ref> by_number(PyObject* table) {
  std::vector<Ref> result;
  for (const auto& [key, number] : DictRange(table)) {
    const auto position = static_cast<size_t>(to_long(number));
    if (position >= result.size()) result.resize(position + 1);
    result[position] = Ref::borrow(key);
  }
  return result;
}

}  // namespace

GraphDecoder::GraphDecoder(py::object classes, py::object values, py::dict constants)
    : classes_object_(std::move(classes)),
      values_(std::move(values)),
      budget_object_(values_.attr("budget").attr("native")),
      resolve_(values_.attr("resolve_target")),
      constants_(std::move(constants)),
      classes_(classes_object_.cast<SchemaClasses*>()),
      budget_(budget_object_.cast<core::Budget*>()),
      spec_kinds_(by_number(symbols.spec_kinds)),
      dtypes_(by_number(symbols.scalar_types)),
      layouts_(by_number(symbols.layouts)),
      memory_formats_(by_number(symbols.memory_formats)) {
  open_graph();
}

template <class Use>
auto GraphDecoder::use(Use use) {
  if (busy_) raise(PyExc_RuntimeError, "this deserializer is in use by another call");
  const core::ScopedValue busy(busy_, true);
  return use();
}

template <class Use>
auto GraphDecoder::read(const py::object& document, bool keep, Use use) {
  return this->use([&] {
    auto& read = *document.cast<Document*>();
    pass_gate(read);
    document_ = &read;
    if (keep) documents_.push_back(document);
    return use();
  });
}

Ref GraphDecoder::program(const py::object& document) {
  return read(document, true, [&] {
    try {
      return decode_program();
    } catch (...) {  // free the graphs, because the traceback keeps the decoder alive
      clear_graphs();
      throw;
    }
  });
}

Ref GraphDecoder::part(const std::string& kind, const py::object& document,
                       const py::object& extra) {
  return read(document, kind == "graph", [&] { return decode_part(kind, extra.ptr()); });
}

void GraphDecoder::open() {
  use([&] { open_graph(); });
}

void GraphDecoder::close() {
  use([&] {
    FXPRESS_CHECK(graphs_.size() > 1, "a nested graph is not open");
    leave_graph();
  });
}

void GraphDecoder::forget_values() {
  use([&] {
    numbers_.clear();
    devices_.clear();
  });
}

void GraphDecoder::name_node(const py::object& node, const std::string& name) {
  use([&] { name_result(node.ptr(), name); });
}

Ref GraphDecoder::value(uint64_t scope, const std::string& name) {
  return use([&] {
    Defined unknown;
    Defined* known = graph_of(scope).find(name);
    return Ref::borrow(value_of(known != nullptr ? *known : unknown, name));
  });
}

Ref GraphDecoder::node(uint64_t scope, const std::string& name) {
  return use([&] {
    const Defined* known = graph_of(scope).find(name);
    return Ref::borrow(known == nullptr ? nullptr : known->node.get());
  });
}

Ref GraphDecoder::nodes(uint64_t scope) {
  return use([&] { return graph_of(scope).nodes(); });
}

Ref GraphDecoder::value_names(uint64_t scope) {
  return use([&] { return graph_of(scope).value_names(); });
}

void GraphDecoder::set_constants(const py::dict& constants) {
  use([&] { constants_ = constants; });
}

void GraphDecoder::set_signature(const py::object& signature) {
  use([&] { signature_ = Ref::borrow(signature.ptr()); });
}

OpenGraph& GraphDecoder::graph_of(uint64_t scope) {
  for (OpenGraph& graph : graphs_) {
    if (graph.scope() == scope) return graph;
  }
  raise(symbols.serialize_error, "the graph with the number %llu is not open",
        static_cast<unsigned long long>(scope));
}

void GraphDecoder::open_graph() {
  call_method(values_.ptr(), fx::names.begin_graph);
  graphs_.emplace_back(++scopes_);
}

// Does not throw, because it also runs while an exception unwinds the stack.
void GraphDecoder::leave_graph() noexcept {
  graphs_.pop_back();
  PyObject* none = PyObject_CallMethodNoArgs(values_.ptr(), fx::names.leave_graph);
  if (none == nullptr) PyErr_WriteUnraisable(values_.ptr());
  Py_XDECREF(none);
}

void GraphDecoder::clear_graphs() {
  while (!graphs_.empty()) leave_graph();
  open_graph();
}

std::optional<std::string_view> GraphDecoder::name_in(const Value& result) const {
  const std::string_view name =
      schema::name_of(*document_, is_argument(result) ? content_of(result) : result);
  if (name.empty()) return std::nullopt;
  return name;
}

Ref GraphDecoder::decode_program() {
  const GcPause pause;
  check_root(Type::ExportedProgram);
  const Value& program = field(document_->root(), Field::ExportedProgram_graph_module);
  signature_ = graph_signature(field(program, Field::GraphModule_signature));
  Ref module;
  {
    const core::ScopedValue allowed(graphs_allowed_, true);
    module = graph_module(field(program, Field::GraphModule_graph));
  }
  const Ref module_calls = calls(field(program, Field::GraphModule_module_call_graph));
  return Ref::steal(PyTuple_Pack(4, module.get(), signature_.get(), module_calls.get(),
                                 has_objects_ ? Py_True : Py_False));
}

namespace {

struct PartKind {
  std::string_view name;
  Type type;  // type of the document's root
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

// Decodes the document's root as a part of type `kind`. Meaning of `extra`, by `kind`:
//   node, inputs      a target: the result of Values.resolve_target()
//   outputs           (target, node that returns the outputs)
//   multiple_outputs  node that returns the outputs
//   result            (node that returns several results, position of this result)
Ref GraphDecoder::decode_part(std::string_view kind, PyObject* extra) {
  const GcPause pause;
  const Value& value = document_->root();
  const auto* known = std::ranges::find(kParts, kind, &PartKind::name);
  FXPRESS_CHECK(known != std::end(kParts), "unknown type of part");
  check_root(known->type);
  if (kind == "tensor") return tensor(value);
  if (kind == "input_spec") return input_spec(value);
  if (kind == "output_spec") return output_spec(value);
  if (kind == "argument_spec") return argument_spec(value);
  if (kind == "signature") return graph_signature(value);
  if (kind == "call_signature") return call_signature(value);
  if (kind == "metadata") {
    Ref result = Ref::steal(PyDict_New());
    add_metadata(read_metadata(value), result.get());
    return result;
  }

  // Decoding the parts below may add nodes to the current graph.
  current().writer().resume();
  const core::ScopedValue allowed(graphs_allowed_, true);
  clear_mentions();
  Ref result;
  try {
    result = add_part(kind, value, extra);
  } catch (...) {
    current().writer().finish();
    throw;
  }
  current().writer().finish();
  return result;
}

// Checks the root's type, because field() does not, and Python callers choose the document.
void GraphDecoder::check_root(Type type) const {
  const Value& root = document_->root();
  const bool has_type = root.kind == ValueKind::kRecord || root.kind == ValueKind::kUnion;
  if (has_type && root.type == static_cast<uint16_t>(type)) return;
  const auto name_of = [&](uint16_t id) { return document_->schema().type(id).name.c_str(); };
  raise(PyExc_TypeError, "expected a %s, got %s", name_of(static_cast<uint16_t>(type)),
        has_type ? name_of(root.type) : "a plain value");
}

Ref GraphDecoder::add_part(std::string_view kind, const Value& value, PyObject* extra) {
  const auto item = [&](Py_ssize_t i) { return PyTuple_GET_ITEM(extra, i); };
  const auto target = [](PyObject* resolved) {
    return operator_of(PyTuple_GET_ITEM(resolved, 1), PyTuple_GET_ITEM(resolved, 0));
  };
  if (kind == "argument") return argument(value);
  if (kind == "inputs") {
    Ref kwargs = Ref::steal(PyDict_New());
    const Ref args = arguments(children_of(value, Field::Node_inputs), target(extra), kwargs);
    return Ref::steal(PyTuple_Pack(2, args.get(), kwargs.get()));
  }
  if (kind == "node") return Ref::borrow(add_node(value, target(extra)));
  if (kind == "outputs") {
    results(value, target(item(0)), item(1), read_metadata(value));
    return Ref::borrow(Py_None);
  }
  if (kind == "multiple_outputs") {
    auto parts = children_of(value, Field::Node_outputs);
    if (parts.size() == 1) parts = children_of(content_of(parts[0]));
    multiple_results(parts, extra, read_metadata(value));
    return Ref::borrow(Py_None);
  }
  if (kind == "result") {
    const size_t position = PyLong_AsSize_t(item(1));
    if (PyErr_Occurred() != nullptr) throw_python_error();
    return take(item(0), position, value, {});
  }
  write_graph(value);
  return Ref::borrow(current().graph());
}

}  // namespace fxpress::serde
