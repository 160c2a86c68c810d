#include <pybind11/stl.h>

#include "bind/convert.h"
#include "fx/serde/decode.h"
#include "fx/serde/encode.h"
#include "fx/serde/read.h"
#include "fx/serde/symbols.h"
#include "serde/schema.h"

namespace fxpress::bind {

namespace {

using serde::Schema;

// types: [(name, is_union, [(field, shape, default as JSON or None)])]
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
  } catch (const serde::SchemaError& error) {
    fx::raise(PyExc_ImportError, "%s", error.what());
  }
}

}  // namespace

void bind_serde(py::module_& m) {
  m.def("initialize_serde",
        [](const py::dict& objects) { fx::serde::initialize_symbols(objects.ptr()); });
  py::class_<fx::serde::SchemaClasses>(m, "SchemaClasses")
      .def(py::init([](const Schema& schema, const py::list& classes, const py::object& make_tag) {
             return std::make_unique<fx::serde::SchemaClasses>(schema, classes.ptr(),
                                                               make_tag.ptr());
           }),
           py::keep_alive<1, 2>())
      .def("write", [](const fx::serde::SchemaClasses& classes, const py::handle& object) {
        return to_object(fx::serde::write_objects(classes, object.ptr()));
      });
  using fx::serde::SchemaClasses;
  py::class_<serde::Document>(m, "Document")
      .def("field",
           [](const serde::Document& document, const SchemaClasses& classes,
              const std::string& name) {
             return to_object(fx::serde::read_field(document, classes, name));
           })
      .def(
          "canonical",
          [](const serde::Document& document, const py::object& constants) {
            return fx::serde::canonical_form(document, constants.ptr());
          },
          py::keep_alive<0, 1>())
      .def("canonical_objects",
           [](const serde::Document& document, const SchemaClasses& classes) {
             return to_object(fx::serde::canonical_objects(document, classes));
           })
      .def("decode_program",
           [](const serde::Document& document, const SchemaClasses& classes,
              const py::object& values, const py::dict& constants) {
             return to_object(
                 fx::serde::decode_program(document, {values.ptr(), constants.ptr(), &classes}));
           })
      .def("decode_tensor", [](const serde::Document& document, const py::object& values) {
        return to_object(
            fx::serde::decode_tensor(document, {values.ptr(), py::dict().ptr(), nullptr}));
      });
  m.def("is_surely_valid", [](const py::list& modules, const py::object& signature,
                              const py::list& calls, const py::dict& state,
                              const py::dict& constants, bool functional) {
    return fx::serde::is_surely_valid(
        PyList_GET_ITEM(modules.ptr(), 0),
        {modules.ptr(), signature.ptr(), calls.ptr(), state.ptr(), constants.ptr(), functional});
  });
  py::class_<Schema>(m, "Schema")
      .def(
          "to_document",
          [](const Schema& schema, const SchemaClasses& classes, const py::object& object,
             bool metadata) {
            return fx::serde::to_document(schema, classes, object.ptr(), metadata);
          },
          py::keep_alive<0, 1>())
      .def(
          "read",
          [](const Schema& schema, const py::bytes& text, const std::string& type) {
            return fx::serde::read_document(schema, text.ptr(), type);
          },
          py::keep_alive<0, 1>())
      .def(py::init(&make_schema))
      .def("difference", &Schema::difference)
      .def("type_names",
           [](const Schema& schema) {
             py::list names;
             for (size_t i = 0; i < schema.size(); ++i) {
               names.append(schema.type(static_cast<uint16_t>(i)).name);
             }
             return names;
           })
      .def("read_objects",
           [](const Schema& schema, const fx::serde::SchemaClasses& classes, const py::bytes& text,
              const std::string& type) {
             return to_object(fx::serde::read_objects(schema, classes, text.ptr(), type));
           })
      .def("rewrite_json",
           [](const Schema& schema, const py::bytes& text, const std::string& type) {
             return to_object(fx::serde::rewrite_json(schema, text.ptr(), type));
           })
      .def("encode_tensor_meta",
           [](const Schema& schema, const py::handle& tensor) {
             return to_object(fx::serde::encode_tensor_meta(schema, tensor.ptr()));
           })
      .def("encode_program",
           [](const Schema& schema, const py::handle& graph_module, const py::handle& signature,
              const py::handle& calls, const py::dict& facts, const py::dict& objects,
              const py::handle& treespec, const py::handle& checked) {
             fx::serde::ProgramCheck check{};
             if (!checked.is_none()) {
               const auto parts = checked.cast<py::tuple>();
               check = {py::list(parts[0]).ptr(), signature.ptr(), calls.ptr(),
                        parts[1].ptr(),           parts[2].ptr(),  parts[3].cast<bool>()};
             }
             return to_object(fx::serde::encode_program(
                 schema, graph_module.ptr(), signature.ptr(), calls.ptr(), facts.ptr(),
                 {objects.ptr(), treespec.ptr(), checked.is_none() ? nullptr : &check}));
           });
}

}  // namespace fxpress::bind
