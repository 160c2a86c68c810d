#include "serde/schema_tables.h"

#include <pybind11/stl.h>

#include "schema/gate.h"

namespace fxpress::serde {

namespace py = pybind11;
using schema::Schema;

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
      rules.append(
          py::make_tuple(type.name, field.name, rule, field.id != schema::Field::kUnknown));
    }
  }
  return rules;
}

}  // namespace fxpress::serde
