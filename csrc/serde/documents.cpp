#include "serde/documents.h"

#include <algorithm>
#include <deque>
#include <unordered_set>

#include "fx/symbols.h"
#include "py/gc_pause.h"
#include "schema/canonical.h"
#include "schema/json_reader.h"
#include "serde/errors.h"
#include "serde/gate.h"
#include "serde/scalars.h"
#include "serde/symbols.h"
#include "serde/text.h"

namespace fxpress::serde {

using schema::Value;

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
    if (value->kind != schema::ValueKind::kRecord || place < 0) {
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

}  // namespace fxpress::serde
