// Encodes programs and parts of programs as JSON bytes or documents.
#include "core/check.h"
#include "fx/symbols.h"
#include "schema/json_writer.h"
#include "serde/graph_encoder.h"
#include "serde/symbols.h"

namespace fxpress::serde {

namespace {

// A buffer that becomes a bytes object without a copy.
class BytesBuffer final : public schema::Buffer {
 public:
  // Allocates `expected` bytes at once. Memory that is not written costs nothing, but enlarging the
  // buffer later could copy the written bytes.
  explicit BytesBuffer(size_t expected) {
    bytes_ = PyBytes_FromStringAndSize(nullptr, static_cast<Py_ssize_t>(expected));
    if (bytes_ == nullptr) {
      PyErr_Clear();  // grow() allocates fewer bytes on the first write
      return;
    }
    data_ = PyBytes_AS_STRING(bytes_);
    capacity_ = expected;
  }
  ~BytesBuffer() override { Py_XDECREF(bytes_); }

  // Returns the bytes object; the buffer is empty afterwards.
  Ref finish() {
    grow(size_);
    data_ = nullptr;
    size_ = capacity_ = 0;
    return Ref::steal(std::exchange(bytes_, nullptr));
  }

 private:
  void grow(size_t capacity) override {
    if (bytes_ == nullptr) {
      bytes_ = check(PyBytes_FromStringAndSize(nullptr, static_cast<Py_ssize_t>(capacity)));
    } else {
      check(_PyBytes_Resize(&bytes_, static_cast<Py_ssize_t>(capacity)));
    }
    data_ = PyBytes_AS_STRING(bytes_);
    capacity_ = capacity;
  }

  PyObject* bytes_ = nullptr;  // owned; data_ points into it
};

// The estimated bytes of a node in a file; few nodes are larger.
constexpr size_t kBytesPerNode = 1536;
constexpr size_t kSmall = 4096;
// Estimates for a document without metadata of nodes. A file of n bytes would become a document
// with n / kBytesPerValue values, and with texts of n / kBytesPerText bytes.
constexpr size_t kBytesPerValue = 16;
constexpr size_t kBytesPerText = 8;

size_t expected_bytes(PyObject* graph_module) {
  const Ref graph = get_attr(graph_module, fx::names.graph);
  const Ref nodes = get_attr(graph.get(), fx::names.len);
  const size_t count = PyLong_Check(nodes.get()) ? PyLong_AsSize_t(nodes.get()) : 0;
  if (PyErr_Occurred() != nullptr) throw_python_error();
  return kSmall + count * kBytesPerNode;
}

// Returns facts[name], borrowed; KeyError if it is missing.
PyObject* fact(PyObject* facts, const char* name) {
  PyObject* value = PyDict_GetItemString(facts, name);
  if (value == nullptr) raise(PyExc_KeyError, "%s", name);
  return value;
}

PyObject* item(PyObject* tuple, Py_ssize_t i) {
  return PyTuple_GET_ITEM(tuple, i);
}

// Appends a node, its getitem users, their getitem users and so on, `depth` levels deep.
void add_with_users(PyObject* node, std::vector<Ref>& nodes, int depth) {
  nodes.push_back(Ref::borrow(node));
  if (depth == 0) return;
  const Ref users =
      Ref::steal(PySequence_Tuple(fx::node_field(node, fx::symbols.node_users).get()));
  for (PyObject* user : items_of(users.get())) {
    if (fx::node_field(user, fx::symbols.node_target).get() == fx::symbols.getitem) {
      add_with_users(user, nodes, depth - 1);
    }
  }
}

// Returns the bytes that write(encoder) writes.
template <class F>
Ref encode_bytes(const Schema& schema, F&& write) {
  BytesBuffer buffer(kSmall);
  schema::JsonWriter writer(buffer);
  GraphEncoder encoder(schema, writer, {});
  write(encoder);
  return buffer.finish();
}

}  // namespace

void GraphEncoder::program(PyObject* module, PyObject* signature, PyObject* calls,
                           PyObject* facts) {
  const std::string& difference = out_.schema().difference();
  if (!difference.empty()) {
    raise(symbols.unsupported_error,
          "the schema of this torch differs in %s, which fxpress cannot write", difference.c_str());
  }
  out_.record(Type::ExportedProgram, [&](Field field) {
    switch (field) {
      case Field::ExportedProgram_graph_module:
        return graph_module(module, signature, calls, facts);
      case Field::ExportedProgram_opset_version:
        return out_.map(fact(facts, "opset_version"), [&](PyObject* value) {
          if (PyBool_Check(value)) return sink_.boolean(value == Py_True);
          if (PyFloat_Check(value)) return sink_.real(PyFloat_AS_DOUBLE(value));
          out_.integer(value);
        });
      case Field::ExportedProgram_range_constraints:
        return out_.map(fact(facts, "range_constraints"), [&](PyObject* value) {
          out_.record(Type::RangeConstraint, [&](Field bound) {
            PyObject* limit = item(value, bound == Field::RangeConstraint_min_val ? 0 : 1);
            if (limit == Py_None) return sink_.null();
            out_.integer(limit);
          });
        });
      case Field::ExportedProgram_schema_version:
        return out_.record(Type::SchemaVersion, [&](Field part) {
          const bool major = part == Field::SchemaVersion_major;
          out_.integer(item(fact(facts, "schema_version"), major ? 0 : 1));
        });
      case Field::ExportedProgram_verifiers:
        return out_.strings(fact(facts, "verifiers"));
      case Field::ExportedProgram_torch_version:
        return out_.string(fact(facts, "torch_version"));
      default:
        return out_.strings(fact(facts, "guards_code"));
    }
  });
  if (context_.check == nullptr) return;
  for (PyObject* module : items_of(context_.check->graph_modules)) {
    if (!written_.contains(module)) throw Doubtful();
  }
}

void GraphEncoder::graph_module(PyObject* module, PyObject* signature, PyObject* entries,
                                PyObject* facts) {
  out_.record(Type::GraphModule, [&](Field field) {
    switch (field) {
      case Field::GraphModule_graph:
        return graph(module);
      case Field::GraphModule_signature:
        return graph_signature(signature);
      case Field::GraphModule_module_call_graph:
        return module_calls(entries);
      case Field::GraphModule_metadata:
        return out_.map(fact(facts, "metadata"), [&](PyObject* text) { out_.string(text); });
      default:
        return out_.map(fact(facts, "namedtuple_fields"), [&](PyObject* fields) {
          out_.record(Type::NamedTupleDef, [&](Field) { out_.strings(fields); });
        });
    }
  });
}

void GraphEncoder::single_node(PyObject* object, bool with_inputs, PyObject* results,
                               PyObject* merged) {
  constexpr int kNested = 2;  // a result may be a list of tensors, each of which has a getitem node
  std::vector<Ref> nodes;
  add_with_users(object, nodes, kNested);
  const GraphValues values(std::move(nodes), operators_);
  {
    const NodeNames::Within within(names_, values, nullptr);
    const NodeEntry& entry = values.entries.front();
    with_inputs ? node(entry) : outputs(entry);
  }
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

void GraphEncoder::part(std::string_view kind, PyObject* values, PyObject* results,
                        PyObject* merged) {
  names_.begin_part(merged);
  PyObject* first = item(values, 0);
  if (kind == "argument") return argument(first, item(values, 1));
  if (kind == "inputs") {
    const Operator function = operator_of(first, nullptr);
    const Ref args = Ref::steal(PySequence_Tuple(item(values, 1)));
    return inputs(function, function.kind == OperatorKind::kSymbolic, args.get(), item(values, 2));
  }
  if (kind == "node") return single_node(first, true, results, merged);
  if (kind == "outputs") return single_node(first, false, results, merged);
  if (kind == "metadata") return metadata(first);
  if (kind == "signature") return graph_signature(first);
  if (kind == "input_spec") return input_spec(first);
  if (kind == "output_spec") return output_spec(first);
  if (kind == "argument_spec") return argument_spec(first);
  if (kind == "call_signature") return call_signature(first);
  if (kind == "call") return module_call(first);
  graph(first);  // kind == "graph"
  for (const auto& [name, other] : names_.merged()) {
    check(PyDict_SetItem(merged, new_string(name).get(), other.get()));
  }
}

void GraphEncoder::payload_config(PyObject* entries) {
  const Ref held = Ref::steal(PySequence_Tuple(entries));
  out_.record(Type::PayloadConfig, [&](Field) {
    sink_.begin_map();
    for (Py_ssize_t i = 0; i < PyTuple_GET_SIZE(held.get()); ++i) {
      PyObject* entry = item(held.get(), i);
      if (!PyTuple_Check(entry) || PyTuple_GET_SIZE(entry) != 5) {
        raise(PyExc_TypeError,
              "expected a tuple of five parts as entry %zd of a PayloadConfig, found %R", i, entry);
      }
      out_.key(item(entry, 0));
      out_.record(Type::PayloadMeta, [&](Field field) {
        switch (field) {
          case Field::PayloadMeta_path_name:
            return out_.string(item(entry, 1));
          case Field::PayloadMeta_is_param:
            return sink_.boolean(item(entry, 3) == Py_True);
          case Field::PayloadMeta_use_pickle:
            return sink_.boolean(item(entry, 4) == Py_True);
          case Field::PayloadMeta_tensor_meta:
            return item(entry, 2) == Py_None ? sink_.null() : tensor_meta(item(entry, 2));
          default:
            FXPRESS_CHECK(false, "the schema was compared before");
        }
      });
    }
    sink_.end_map();
  });
}

Ref encode_program(const Schema& schema, PyObject* graph_module, PyObject* signature,
                   PyObject* calls, PyObject* facts, const EncodeContext& context) {
  BytesBuffer buffer(expected_bytes(graph_module));
  schema::JsonWriter writer(buffer);
  try {
    GraphEncoder(schema, writer, context).program(graph_module, signature, calls, facts);
  } catch (const Doubtful&) {
    return Ref::borrow(Py_None);
  }
  return buffer.finish();
}

schema::Document encode_document(const Schema& schema, PyObject* graph_module, PyObject* signature,
                                 PyObject* calls, PyObject* facts, PyObject* objects,
                                 PyObject* treespec) {
  schema::DocumentBuilder builder(schema);
  const EncodeContext bare{objects, treespec, nullptr, false};
  const size_t bytes = expected_bytes(graph_module);
  builder.reserve(bytes / kBytesPerValue, bytes / kBytesPerText);
  GraphEncoder(schema, builder, bare).program(graph_module, signature, calls, facts);
  return builder.finish();
}

schema::Document encode_part(const Schema& schema, const std::string& kind,
                             const pybind11::tuple& values, PyObject* objects, PyObject* treespec,
                             const pybind11::list& results, const pybind11::dict& merged) {
  schema::DocumentBuilder builder(schema);
  GraphEncoder(schema, builder, {objects, treespec})
      .part(kind, values.ptr(), results.ptr(), merged.ptr());
  return builder.finish();
}

Ref encode_payload_config(const Schema& schema, PyObject* entries) {
  return encode_bytes(schema, [&](GraphEncoder& encoder) { encoder.payload_config(entries); });
}

Ref encode_tensor_meta(const Schema& schema, PyObject* tensor) {
  return encode_bytes(schema, [&](GraphEncoder& encoder) { encoder.tensor_meta(tensor); });
}

Ref write_objects(const SchemaClasses& classes, PyObject* object) {
  BytesBuffer buffer(kSmall);
  schema::JsonWriter writer(buffer);
  classes.write(object, writer);
  return buffer.finish();
}

}  // namespace fxpress::serde
