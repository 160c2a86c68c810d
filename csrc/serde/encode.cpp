#include "serde/encode.h"

#include "fx/symbols.h"
#include "schema/json_writer.h"
#include "serde/bytes_buffer.h"
#include "serde/encode_part.h"
#include "serde/encode_program.h"
#include "serde/errors.h"
#include "serde/payloads.h"

namespace fxpress::serde {

namespace {

// Bytes a node has in a file: few have more.
constexpr size_t kBytesPerNode = 1536;
constexpr size_t kSmall = 4096;
// A file has so many bytes for each value in it, and for each byte of the texts that are not of the
// nodes' metadata.
constexpr size_t kBytesPerValue = 16;
constexpr size_t kBytesPerText = 8;

// The context for values without a graph.
constexpr EncodeContext kNoContext = {nullptr, nullptr, nullptr};

size_t expected_bytes(PyObject* graph_module) {
  const Ref graph = get_attr(graph_module, fx::names.graph);
  const Ref nodes = get_attr(graph.get(), fx::names.len);
  const size_t count = PyLong_Check(nodes.get()) ? PyLong_AsSize_t(nodes.get()) : 0;
  if (PyErr_Occurred() != nullptr) throw_python_error();
  return kSmall + count * kBytesPerNode;
}

}  // namespace

Ref encode_program(const Schema& schema, PyObject* graph_module, PyObject* signature,
                   PyObject* calls, PyObject* facts, const EncodeContext& context) {
  BytesBuffer buffer(expected_bytes(graph_module));
  schema::JsonWriter writer(buffer);
  try {
    Encoders encoders(schema, writer, context);
    ProgramEncoder(encoders, facts).program(graph_module, signature, calls);
  } catch (const Doubtful&) {
    return Ref::borrow(Py_None);
  }
  return buffer.finish();
}

schema::Document encode_document(const Schema& schema, PyObject* graph_module, PyObject* signature,
                                 PyObject* calls, PyObject* facts, const EncodeContext& context) {
  schema::DocumentBuilder builder(schema);
  EncodeContext bare = context;
  bare.metadata = false;
  const size_t bytes = expected_bytes(graph_module);
  builder.reserve(bytes / kBytesPerValue, bytes / kBytesPerText);
  Encoders encoders(schema, builder, bare);
  ProgramEncoder(encoders, facts).program(graph_module, signature, calls);
  return builder.finish();
}

schema::Document encode_part(const Schema& schema, const std::string& kind, PyObject* values,
                             const EncodeContext& context, PyObject* results, PyObject* merged) {
  schema::DocumentBuilder builder(schema);
  Encoders encoders(schema, builder, context);
  PartEncoder(encoders, results, merged).part(kind, values);
  return builder.finish();
}

Ref encode_payload_config(const Schema& schema, PyObject* entries) {
  BytesBuffer buffer(kSmall);
  schema::JsonWriter writer(buffer);
  Encoding to{SchemaWriter(schema, writer), kNoContext};
  write_payload_config(to, entries);
  return buffer.finish();
}

Ref encode_tensor_meta(const Schema& schema, PyObject* tensor) {
  BytesBuffer buffer(kSmall);
  schema::JsonWriter writer(buffer);
  Encoding to{SchemaWriter(schema, writer), kNoContext};
  ValueEncoder(to).tensor_meta(tensor);
  return buffer.finish();
}

Ref write_objects(const SchemaClasses& classes, PyObject* object) {
  BytesBuffer buffer(kSmall);
  schema::JsonWriter writer(buffer);
  classes.write(object, writer);
  return buffer.finish();
}

}  // namespace fxpress::serde
