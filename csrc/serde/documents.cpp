#include "serde/documents.h"

#include <pybind11/stl.h>

#include <algorithm>
#include <array>
#include <deque>

#include "core/text_hash.h"
#include "fx/symbols.h"
#include "py/calls.h"
#include "py/containers.h"
#include "py/gc_pause.h"
#include "schema/canonical.h"
#include "schema/gate.h"
#include "schema/graph_hash.h"
#include "schema/json_reader.h"
#include "serde/scalars.h"
#include "serde/symbols.h"

namespace fxpress::serde {

namespace py = pybind11;

using schema::Field;
using schema::Rule;
using schema::Value;
using schema::ValueKind;

std::unique_ptr<Schema> make_schema(const py::list& types) {
  std::vector<Schema::NewType> all;
  for (const py::handle& item : types) {
    const auto type = item.cast<py::tuple>();
    Schema::NewType made{type[0].cast<std::string>(), type[1].cast<bool>(), {}};
    for (const py::handle& field : type[2].cast<py::list>()) {
      const auto part = field.cast<py::tuple>();
      const bool required = part[2].is_none();
      made.fields.push_back({part[0].cast<std::string>(), part[1].cast<std::string>(), required,
                             required ? std::string() : part[2].cast<std::string>()});
    }
    all.push_back(std::move(made));
  }
  try {
    return std::make_unique<Schema>(all);
  } catch (const schema::SchemaError& error) {
    raise(PyExc_ImportError, "%s", error.what());
  }
}

py::list type_names(const Schema& schema) {
  py::list result;
  for (size_t i = 0; i < schema.size(); ++i) {
    result.append(schema.type(static_cast<uint16_t>(i)).name);
  }
  return result;
}

py::list rules_of(const Schema& schema) {
  py::list rules;
  for (size_t i = 0; i < schema.size(); ++i) {
    const schema::TypeInfo& type = schema.type(static_cast<uint16_t>(i));
    for (const schema::FieldInfo& field : type.fields) {
      const py::object rule = field.rule == schema::Rule::kNone
                                  ? py::object(py::none())
                                  : py::str(std::string(schema::name_of(field.rule)));
      rules.append(py::make_tuple(type.name, field.name, rule, field.id != Field::kUnknown));
    }
  }
  return rules;
}

namespace {

constexpr size_t kShown = 120;  // maximum bytes of a value in an error

bool is_unicode_identifier(std::string_view text) {
  return PyUnicode_IsIdentifier(new_text(text).get()) == 1;
}

// Returns the text if it has at most `size` bytes, else its first characters and "...".
Ref beginning(std::string_view text, size_t size) {
  const bool is_short = text.size() <= size;
  while (!is_short && size > 0 && (static_cast<unsigned char>(text[size]) & 0xc0u) == 0x80u) --size;
  std::string shown(text.substr(0, size));
  if (!is_short) shown += "...";
  return new_text(shown);
}

Rule known_rule(std::string_view name) {
  const Rule rule = schema::rule_named(name);
  if (rule == Rule::kNone) raise(PyExc_KeyError, "%s", std::string(name).c_str());
  return rule;
}

}  // namespace

void pass_gate(Document& document) {
  if (document.has_passed()) return;
  try {
    schema::pass_gate(document, is_unicode_identifier);
  } catch (const schema::GateError& error) {
    raise(damage_error(), "%U: %R %s", beginning(error.path(), 4 * kShown).get(),
          beginning(error.value(), kShown).get(), error.fault());
  }
  document.set_passed();
}

bool passes_gate(std::string_view rule, PyObject* text) {
  return schema::passes(known_rule(rule), Text(text).view(), is_unicode_identifier);
}

Ref first_refused(std::string_view rule, PyObject* texts) {
  const Rule known = known_rule(rule);
  const Ref items = Ref::steal(PySequence_Tuple(texts));
  for (PyObject* item : items_of(items.get())) {
    if (PyUnicode_Check(item) && schema::passes(known, Text(item).view(), is_unicode_identifier)) {
      continue;
    }
    return Ref::borrow(item);
  }
  return Ref::borrow(Py_None);
}

Ref gate_rules() {
  Ref result = Ref::steal(PyDict_New());
  for (size_t i = 1; i < static_cast<size_t>(Rule::kCount); ++i) {
    const auto rule = static_cast<Rule>(i);
    const Ref fault = Ref::steal(PyUnicode_FromString(schema::fault_of(rule)));
    const Ref name = new_text(schema::name_of(rule));
    check(PyDict_SetItem(result.get(), name.get(), fault.get()));
  }
  return result;
}

Document read_document(const Schema& schema, PyObject* bytes, const std::string& type,
                       core::Budget* budget) {
  char* text = nullptr;
  Py_ssize_t size = 0;
  check(PyBytes_AsStringAndSize(bytes, &text, &size));
  const int position = schema.find(type);
  if (position < 0) raise(PyExc_KeyError, "%s", type.c_str());
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
    const std::string_view problem = error.what();
    const Ref message = Ref::steal(
        PyUnicode_DecodeUTF8(problem.data(), static_cast<Py_ssize_t>(problem.size()), "replace"));
    PyErr_SetObject(damage_error(), message.get());
    throw_python_error();
  }
}

Ref read_field(const Document& document, const SchemaClasses& classes, const std::string& path,
               bool all_members) {
  const Value* value = &document.root();
  for (size_t start = 0; start < path.size();) {
    const size_t end = std::min(path.find('.', start), path.size());
    const int position = document.schema().type(value->type).find(path.substr(start, end - start));
    if (value->kind != ValueKind::kRecord || position < 0) {
      raise(PyExc_KeyError, "%s", path.c_str());
    }
    value = &document.children(*value)[static_cast<size_t>(position)];
    start = end + 1;
  }
  const GcPause pause;
  return classes.make(document, *value, all_members);
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

Document canonicalize(const Document& document, PyObject* constants, PyObject* renamed) {
  std::deque<Text> texts;
  core::TextViewSet known;
  const Ref items = Ref::steal(PySequence_Tuple(constants));
  for (PyObject* name : items_of(items.get())) {
    texts.emplace_back(name);
    known.insert(texts.back().view());
  }
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
    raise(PyExc_KeyError, "%s", error.what());
  } catch (const schema::CanonicalError& error) {
    raise(PyExc_AssertionError, "%s", error.what());
  }
}

}  // namespace

Ref canonical_form(const Schema& schema, const SchemaClasses& classes, PyObject* object,
                   PyObject* constants, PyObject* renamed) {
  const GcPause pause;
  schema::DocumentBuilder builder(schema);
  const std::vector<Ref> kept = classes.write_for_order(object, builder);
  const Document document = canonicalize(builder.finish(), constants, renamed);
  Ref made = classes.make(document, document.root(), /*all_members=*/false, kept);
  if (renamed != nullptr) return made;
  const Ref graph = get_attr(get_attr(made.get(), fx::names.graph_module).get(), fx::names.graph);
  for (PyObject* name : {fx::names.inputs, fx::names.outputs}) {  // torch makes these fields tuples
    const Ref list = get_attr(graph.get(), name);
    check(PyObject_SetAttr(graph.get(), name, Ref::steal(PyList_AsTuple(list.get())).get()));
  }
  return made;
}

namespace {

Ref number(const Document& document, const Value& symbolic) {
  const Value& content = document.content(symbolic);
  if (content.kind != ValueKind::kInt) {
    raise(damage_error(),
          "expected ints as sizes, strides and offset of a stored tensor, found an expression");
  }
  return Ref::steal(PyLong_FromLongLong(content.integer));
}

Ref numbers(const Document& document, const Value& list) {
  const auto items = document.children(list);
  return make_tuple(items.size(), [&](size_t i) { return number(document, items[i]); });
}

Ref truth(const Value& value) {
  return Ref::borrow(value.integer != 0 ? Py_True : Py_False);
}

Ref tensor_meta(const Document& document, const Value& meta) {
  if (meta.kind == ValueKind::kNull) return Ref::borrow(Py_None);
  const Value& device = document.field(meta, Field::TensorMeta_device);
  std::array<Ref, 7> parts = {
      scalar(document, document.field(meta, Field::TensorMeta_dtype)),
      numbers(document, document.field(meta, Field::TensorMeta_sizes)),
      numbers(document, document.field(meta, Field::TensorMeta_strides)),
      number(document, document.field(meta, Field::TensorMeta_storage_offset)),
      truth(document.field(meta, Field::TensorMeta_requires_grad)),
      scalar(document, document.field(device, Field::Device_type)),
      scalar(document, document.field(device, Field::Device_index)),
  };
  return take_as_tuple(parts);
}

}  // namespace

Ref read_payload_config(const Document& document) {
  const auto entries =
      document.children(document.field(document.root(), Field::PayloadConfig_config));
  return make_list(entries.size() / 2, [&](size_t i) {
    const Value& meta = entries[2 * i + 1];
    std::array<Ref, 5> parts = {
        new_text(document.text(entries[2 * i])),
        new_text(document.text(document.field(meta, Field::PayloadMeta_path_name))),
        truth(document.field(meta, Field::PayloadMeta_is_param)),
        truth(document.field(meta, Field::PayloadMeta_use_pickle)),
        tensor_meta(document, document.field(meta, Field::PayloadMeta_tensor_meta)),
    };
    return take_as_tuple(parts);
  });
}

namespace {

schema::HashContext hash_context(const py::dict& traits, const py::dict& values) {
  schema::HashContext context;
  for (const auto& [target, stored] : traits) {
    const auto parts = stored.cast<py::tuple>();
    context.traits.emplace(
        target.cast<std::string>(),
        schema::OperatorTraits{parts[0].cast<std::vector<std::string>>(),
                               parts[1].cast<std::vector<std::string>>(), parts[2].cast<bool>(),
                               parts[3].cast<bool>(), parts[4].cast<bool>()});
  }
  for (const auto& [name, digest] : values) {
    const auto bytes = digest.cast<std::string_view>();
    schema::Digest& made = context.values[name.cast<std::string>()];
    if (bytes.size() != made.size()) raise(PyExc_ValueError, "expected a digest of 32 bytes");
    std::copy(bytes.begin(), bytes.end(), made.begin());
  }
  return context;
}

schema::GraphHash hash_of(const Document& document, const schema::HashContext& context) {
  try {
    const py::gil_scoped_release release;
    return schema::hash_program(document, context);
  } catch (const schema::CanonicalError& error) {
    raise(PyExc_AssertionError, "%s", error.what());
  }
}

}  // namespace

py::tuple hash_document(const Document& document, const py::dict& traits, const py::dict& values) {
  const schema::GraphHash hash = hash_of(document, hash_context(traits, values));
  static_assert(sizeof(schema::Digest) == 32);
  const auto bytes = [](const schema::Digest* digests, size_t count) {
    return py::bytes(reinterpret_cast<const char*>(digests), count * sizeof(schema::Digest));
  };
  return py::make_tuple(bytes(&hash.program, 1), bytes(hash.nodes.data(), hash.nodes.size()));
}

}  // namespace fxpress::serde
