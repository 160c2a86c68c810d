#include "serde/documents.h"

#include <algorithm>
#include <array>
#include <deque>
#include <unordered_set>

#include "fx/symbols.h"
#include "py/containers.h"
#include "py/gc_pause.h"
#include "schema/canonical.h"
#include "schema/json_reader.h"
#include "serde/errors.h"
#include "serde/gate.h"
#include "serde/scalars.h"
#include "serde/symbols.h"
#include "serde/text.h"

namespace fxpress::serde {

using schema::Field;
using schema::Value;
using schema::ValueKind;

Document read_document(const Schema& schema, PyObject* bytes, const std::string& type,
                       core::Budget* budget) {
  char* text = nullptr;
  Py_ssize_t size = 0;
  check(PyBytes_AsStringAndSize(bytes, &text, &size));
  const int position = schema.find(type);
  if (position < 0) raise(PyExc_KeyError, "%s", type.c_str());
  std::string problem;
  try {
    const auto read = [&] {
      const pybind11::gil_scoped_release release;
      return schema::read_json({text, static_cast<size_t>(size)}, schema,
                               static_cast<uint16_t>(position), budget);
    };
    Document document = read();
    pass_gate(document);
    return document;
  } catch (const schema::JsonError& error) {
    problem = error.what();
  }
  const Ref message = Ref::steal(
      PyUnicode_DecodeUTF8(problem.data(), static_cast<Py_ssize_t>(problem.size()), "replace"));
  PyErr_SetObject(damage_error(), message.get());
  throw_python_error();
}

Ref read_field(const Document& document, const SchemaClasses& classes, const std::string& path) {
  const Value* value = &document.root();
  for (size_t start = 0; start < path.size();) {
    const size_t end = std::min(path.find('.', start), path.size());
    const int place = document.schema().type(value->type).find(path.substr(start, end - start));
    if (value->kind != ValueKind::kRecord || place < 0) {
      raise(PyExc_KeyError, "%s", path.c_str());
    }
    value = &document.children(*value)[static_cast<size_t>(place)];
    start = end + 1;
  }
  const GcPause pause;
  return classes.make(document, *value);
}

Document to_document(const Schema& schema, const SchemaClasses& classes, PyObject* object) {
  const GcPause pause;
  schema::DocumentBuilder builder(schema);
  classes.write(object, builder);
  Document document = builder.finish();
  pass_gate(document);
  return document;
}

namespace {

Document in_order(const Document& document, PyObject* constants, PyObject* renamed) {
  std::deque<Text> texts;
  std::unordered_set<std::string_view> known;
  const Ref items = Ref::steal(PySequence_Tuple(constants));
  for (Py_ssize_t i = 0; i < PyTuple_GET_SIZE(items.get()); ++i) {
    texts.emplace_back(PyTuple_GET_ITEM(items.get(), i));
    known.insert(texts.back().view());
  }
  std::string problem;
  PyObject* type = PyExc_AssertionError;
  schema::NewNames made;
  try {
    const auto form = [&] {
      const pybind11::gil_scoped_release release;
      if (renamed == nullptr) return schema::canonicalize(document, known);
      return schema::canonicalize_graph(document, known, made);
    };
    Document result = form();
    for (const auto& [name, other] : made) {
      check(PyDict_SetItem(renamed, new_text(name).get(), new_text(other).get()));
    }
    return result;
  } catch (const schema::UnknownName& error) {
    problem = error.what();
    type = PyExc_KeyError;
  } catch (const schema::CanonicalError& error) {
    problem = error.what();
  }
  raise(type, "%s", problem.c_str());
}

}  // namespace

Ref canonical_form(const Schema& schema, const SchemaClasses& classes, PyObject* object,
                   PyObject* constants, PyObject* renamed) {
  const GcPause pause;
  schema::DocumentBuilder builder(schema);
  const std::vector<Ref> kept = classes.write_for_order(object, builder);
  const Document document = in_order(builder.finish(), constants, renamed);
  Ref made = classes.make(document, document.root(), kept);
  if (renamed != nullptr) return made;
  const Ref graph = get_attr(get_attr(made.get(), names.graph_module).get(), fx::names.graph);
  for (PyObject* name : {names.inputs, names.outputs}) {  // tuples, as in torch
    const Ref list = get_attr(graph.get(), name);
    check(PyObject_SetAttr(graph.get(), name, Ref::steal(PyList_AsTuple(list.get())).get()));
  }
  return made;
}

namespace {

// Texts of a document that occur often: made once.
class LatestText {
 public:
  Ref get(std::string_view text) {
    if (!latest_ || text != text_) {
      latest_ = new_text(text);
      text_ = text;
    }
    return Ref::borrow(latest_.get());
  }

 private:
  std::string text_;
  Ref latest_;
};

Ref number(const Document& document, const Value& symbolic) {
  const Value& content = document.content(symbolic);
  if (content.kind != ValueKind::kInt) {
    raise(damage_error(), "a stored tensor has a symbolic size");
  }
  return Ref::steal(PyLong_FromLongLong(content.integer));
}

Ref numbers(const Document& document, const Value& list) {
  const auto items = document.children(list);
  Ref result = Ref::steal(PyTuple_New(static_cast<Py_ssize_t>(items.size())));
  for (size_t i = 0; i < items.size(); ++i) {
    PyTuple_SET_ITEM(result.get(), static_cast<Py_ssize_t>(i),
                     number(document, items[i]).release());
  }
  return result;
}

Ref truth(const Value& value) {
  return Ref::borrow(value.integer != 0 ? Py_True : Py_False);
}

Ref tensor_meta(const Document& document, const Value& meta, LatestText& device_names) {
  if (meta.kind == ValueKind::kNull) return Ref::borrow(Py_None);
  const Value& device = document.field(meta, Field::TensorMeta_device);
  std::array<Ref, 7> parts = {
      scalar(document, document.field(meta, Field::TensorMeta_dtype)),
      numbers(document, document.field(meta, Field::TensorMeta_sizes)),
      numbers(document, document.field(meta, Field::TensorMeta_strides)),
      number(document, document.field(meta, Field::TensorMeta_storage_offset)),
      truth(document.field(meta, Field::TensorMeta_requires_grad)),
      device_names.get(document.text(document.field(device, Field::Device_type))),
      scalar(document, document.field(device, Field::Device_index)),
  };
  return take_as_tuple(parts);
}

}  // namespace

Ref read_payload_config(const Document& document) {
  const auto entries =
      document.children(document.field(document.root(), Field::PayloadConfig_config));
  Ref result = Ref::steal(PyList_New(0));
  LatestText devices;
  for (size_t i = 0; i + 1 < entries.size(); i += 2) {
    const Value& meta = entries[i + 1];
    std::array<Ref, 5> parts = {
        new_text(document.text(entries[i])),
        new_text(document.text(document.field(meta, Field::PayloadMeta_path_name))),
        truth(document.field(meta, Field::PayloadMeta_is_param)),
        truth(document.field(meta, Field::PayloadMeta_use_pickle)),
        tensor_meta(document, document.field(meta, Field::PayloadMeta_tensor_meta), devices),
    };
    check(PyList_Append(result.get(), take_as_tuple(parts).get()));
  }
  return result;
}

}  // namespace fxpress::serde
