#include "fx/serde/encode.h"

#include "fx/serde/bytes_buffer.h"
#include "fx/serde/errors.h"
#include "fx/serde/symbols.h"
#include "fx/symbols.h"
#include "serde/document.h"
#include "serde/json_reader.h"
#include "serde/json_writer.h"

namespace fxpress::fx::serde {

namespace {

// Bytes a node has in a file: few have more.
constexpr size_t kBytesPerNode = 1536;
constexpr size_t kSmall = 4096;

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
  ::fxpress::serde::JsonWriter writer(buffer);
  try {
    Encoder(schema, writer, context).program(graph_module, signature, calls, facts);
  } catch (const Doubtful&) {
    return Ref::borrow(Py_None);
  }
  return buffer.finish();
}

Ref encode_tensor_meta(const Schema& schema, PyObject* tensor) {
  BytesBuffer buffer(kSmall);
  ::fxpress::serde::JsonWriter writer(buffer);
  Encoder(schema, writer, {nullptr, nullptr, nullptr}).tensor_meta(tensor);
  return buffer.finish();
}

Ref rewrite_json(const Schema& schema, PyObject* bytes, const std::string& type) {
  char* text = nullptr;
  Py_ssize_t size = 0;
  check(PyBytes_AsStringAndSize(bytes, &text, &size));
  const int position = schema.find(type);
  if (position < 0) raise(PyExc_KeyError, "%s", type.c_str());
  try {
    const ::fxpress::serde::Document document = ::fxpress::serde::read_json(
        {text, static_cast<size_t>(size)}, schema, static_cast<uint16_t>(position));
    BytesBuffer buffer(static_cast<size_t>(size));
    ::fxpress::serde::JsonWriter writer(buffer);
    document.write(document.root(), writer);
    return buffer.finish();
  } catch (const ::fxpress::serde::JsonError& error) {
    raise(symbols.serialize_error, "%s", error.what());
  }
}

}  // namespace fxpress::fx::serde
