#include <pybind11/stl.h>

#include "bind/closed_class.h"
#include "bind/convert.h"
#include "schema/canonical.h"
#include "schema/gate.h"
#include "schema/graph_hash.h"
#include "schema/graph_targets.h"
#include "schema/schema.h"
#include "serde/check.h"
#include "serde/decoder.h"
#include "serde/documents.h"
#include "serde/encode.h"
#include "serde/gate.h"
#include "serde/kinds.h"
#include "serde/payloads.h"
#include "serde/symbols.h"

namespace fxpress::bind {

namespace {

using schema::Schema;

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
  } catch (const schema::SchemaError& error) {
    raise(PyExc_ImportError, "%s", error.what());
  }
}

// to_check: fxpress._serde.checks.ToCheck.
serde::ProgramCheck program_check(const py::handle& signature, const py::handle& calls,
                                  const py::tuple& to_check) {
  return {to_check[0].cast<py::list>().ptr(),
          signature.ptr(),
          calls.ptr(),
          to_check[1].ptr(),
          to_check[2].ptr(),
          to_check[3].cast<bool>()};
}

// traits: {target: (aliased, written, random, effectful, changes_mode)}; values: {name: digest}.
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
    if (bytes.size() != made.size()) raise(PyExc_ValueError, "a digest has 32 bytes");
    std::copy(bytes.begin(), bytes.end(), made.begin());
  }
  return context;
}

schema::GraphHash hash_of(const schema::Document& document, const schema::HashContext& context) {
  std::string problem;
  try {
    const py::gil_scoped_release release;
    return schema::hash_program(document, context);
  } catch (const schema::CanonicalError& error) {
    problem = error.what();
  }
  raise(PyExc_AssertionError, "%s", problem.c_str());
}

py::bytes to_bytes(const schema::Digest& digest) {
  return {reinterpret_cast<const char*>(digest.data()), digest.size()};
}

// A decoder, and the objects that it borrows.
class GraphReader {
 public:
  GraphReader(py::object classes, py::object values, py::dict constants)
      : classes_(std::move(classes)),
        values_(std::move(values)),
        budget_(values_.attr("budget").attr("native")),
        constants_(std::move(constants)),
        decoder_({values_.ptr(), constants_.ptr(), classes_.cast<serde::SchemaClasses*>(),
                  budget_.cast<core::Budget*>()}) {
    decoder_.graphs().open();
  }

  // Calls `use(decoder)`. Python code that runs inside may not use the reader again, nor may
  // another thread meanwhile.
  template <class Use>
  auto use(Use use) {
    if (busy_) raise(PyExc_RuntimeError, "this deserializer is reading already");
    struct Busy {
      bool& flag;
      explicit Busy(bool& busy) : flag(busy) { flag = true; }
      ~Busy() { flag = false; }
    } const busy(busy_);
    return use(decoder_);
  }
  // Calls use(decoder) while a document is read. `keep`: graphs refer to the document later on.
  template <class Use>
  auto read(const py::object& document, bool keep, Use use) {
    return this->use([&](serde::Decoder& decoder) {
      decoder.read(*document.cast<schema::Document*>());
      if (keep) documents_.push_back(document);
      return use(decoder);
    });
  }

  const serde::Decoder& decoder() const { return decoder_; }
  py::dict constants() const { return constants_; }
  void set_constants(const py::dict& constants) {
    use([&](serde::Decoder& decoder) {
      constants_ = constants;
      decoder.set_constants(constants_.ptr());
    });
  }

 private:
  py::object classes_, values_, budget_;
  py::dict constants_;
  std::vector<py::object> documents_;
  serde::Decoder decoder_;
  bool busy_ = false;  // in a call
};

py::object borrowed(PyObject* object) {
  return py::reinterpret_borrow<py::object>(object == nullptr ? Py_None : object);
}

// The node with this name in the file, or null.
PyObject* node_of(serde::OpenGraphs& graphs, uint64_t scope, std::string_view name) {
  const serde::Defined* known = graphs.of(scope).find(name);
  return known == nullptr ? nullptr : known->node.get();
}

// [(type, field, the name of its rule or None, whether native code gives the field a meaning)]
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

void bind_graph_reader(py::module_& m) {
  using serde::Decoder;
  closed_class<GraphReader>(m, "GraphReader")
      .def(py::init<py::object, py::object, py::dict>())
      .def("program",
           [](GraphReader& reader, const py::object& document) {
             return reader.read(document, true, [](Decoder& decoder) {
               try {
                 return to_object(decoder.program());
               } catch (...) {  // the traceback holds the reader: the collector cannot see into it
                 decoder.graphs().clear();
                 throw;
               }
             });
           })
      .def("part",
           [](GraphReader& reader, const std::string& kind, const py::object& document,
              const py::object& extra) {
             return reader.read(document, kind == "graph", [&](Decoder& decoder) {
               return to_object(decoder.part(kind, extra.ptr()));
             });
           })
      .def("open", [](GraphReader& reader) { reader.use([](Decoder& d) { d.graphs().open(); }); })
      .def("close", [](GraphReader& reader) { reader.use([](Decoder& d) { d.graphs().close(); }); })
      .def("forget_values",
           [](GraphReader& reader) { reader.use([](Decoder& d) { d.forget_values(); }); })
      .def("name_node",
           [](GraphReader& reader, const py::object& node, const std::string& name) {
             reader.use([&](Decoder& d) { d.name_node(node.ptr(), name); });
           })
      .def("value",
           [](GraphReader& reader, uint64_t scope, const std::string& name) {
             return reader.use([&](Decoder& d) { return to_object(d.value(scope, name)); });
           })
      .def("node",
           [](GraphReader& reader, uint64_t scope, const std::string& name) {
             return reader.use(
                 [&](Decoder& d) { return borrowed(node_of(d.graphs(), scope, name)); });
           })
      .def("nodes",
           [](GraphReader& reader, uint64_t scope) {
             return reader.use([&](Decoder& d) { return to_object(d.graphs().of(scope).nodes()); });
           })
      .def("value_names",
           [](GraphReader& reader, uint64_t scope) {
             return reader.use(
                 [&](Decoder& d) { return to_object(d.graphs().of(scope).value_names()); });
           })
      .def_property_readonly(
          "scope",
          [](const GraphReader& reader) { return reader.decoder().graphs().current().scope(); })
      .def_property_readonly("graph",
                             [](const GraphReader& reader) {
                               return borrowed(reader.decoder().graphs().current().graph());
                             })
      .def_property_readonly("root",
                             [](const GraphReader& reader) {
                               return borrowed(reader.decoder().graphs().current().root());
                             })
      .def_property("constants", &GraphReader::constants, &GraphReader::set_constants)
      .def_property(
          "signature",
          [](const GraphReader& reader) { return borrowed(reader.decoder().signature()); },
          [](GraphReader& reader, const py::object& signature) {
            reader.use([&](Decoder& d) { d.set_signature(Ref::borrow(signature.ptr())); });
          });
}

}  // namespace

void bind_serde(py::module_& m) {
  m.attr("INPUT_KINDS") = texts(serde::kInputKindNames);
  m.attr("OUTPUT_KINDS") = texts(serde::kOutputKindNames);
  m.def("initialize_serde",
        [](const py::dict& objects) { serde::initialize_symbols(objects.ptr()); });
  closed_class<serde::SchemaClasses>(m, "SchemaClasses")
      .def(py::init([](const Schema& schema, const py::list& classes, const py::object& make_tag) {
             return std::make_unique<serde::SchemaClasses>(schema, classes.ptr(), make_tag.ptr());
           }),
           py::keep_alive<1, 2>())
      .def("write", [](const serde::SchemaClasses& classes, const py::handle& object) {
        return to_object(serde::write_objects(classes, object.ptr()));
      });
  using serde::SchemaClasses;
  closed_class<schema::Document>(m, "Document")
      .def("field",
           [](const schema::Document& document, const SchemaClasses& classes,
              const std::string& name) {
             return to_object(serde::read_field(document, classes, name));
           })
      .def("payloads",
           [](const schema::Document& document) {
             return to_object(serde::read_payload_config(document));
           })
      .def_property_readonly("size", &schema::Document::bytes)
      .def("targets", &schema::targets_of)
      .def("hash",
           [](const schema::Document& document, const py::dict& traits, const py::dict& values) {
             const schema::GraphHash hash = hash_of(document, hash_context(traits, values));
             static_assert(sizeof(schema::Digest) == 32);
             const auto* nodes = reinterpret_cast<const char*>(hash.nodes.data());
             return py::make_tuple(to_bytes(hash.program),
                                   py::bytes(nodes, hash.nodes.size() * sizeof(schema::Digest)));
           });
  bind_graph_reader(m);
  m.def("passes_gate", [](const std::string& rule, const py::str& text) {
    return serde::passes_gate(rule, text.ptr());
  });
  m.def("first_refused", [](const std::string& rule, const py::iterable& texts) {
    return to_object(serde::first_refused(rule, texts.ptr()));
  });
  m.def("gate_rules", [] { return to_object(serde::gate_rules()); });
  m.def("is_surely_valid",
        [](const py::handle& signature, const py::handle& calls, const py::tuple& to_check) {
          return serde::is_surely_valid(program_check(signature, calls, to_check));
        });
  closed_class<Schema>(m, "Schema")
      .def(
          "to_document",
          [](const Schema& schema, const SchemaClasses& classes, const py::object& object) {
            return serde::to_document(schema, classes, object.ptr());
          },
          RefersToSelf())
      .def("canonical",
           [](const Schema& schema, const SchemaClasses& classes, const py::object& program,
              const py::object& constants) {
             return to_object(
                 serde::canonical_form(schema, classes, program.ptr(), constants.ptr(), nullptr));
           })
      .def("canonical_graph",
           [](const Schema& schema, const SchemaClasses& classes, const py::object& graph,
              const py::object& constants, const py::dict& names) {
             return to_object(
                 serde::canonical_form(schema, classes, graph.ptr(), constants.ptr(), names.ptr()));
           })
      .def(
          "read",
          [](const Schema& schema, const py::bytes& text, const std::string& type,
             core::Budget* budget) {
            return serde::read_document(schema, text.ptr(), type, budget);
          },
          py::arg("text"), py::arg("type"), py::arg("budget") = nullptr, RefersToSelf())
      .def(py::init(&make_schema))
      .def("difference", &Schema::difference)
      .def("rules", &rules_of)
      .def("type_names",
           [](const Schema& schema) {
             py::list names;
             for (size_t i = 0; i < schema.size(); ++i) {
               names.append(schema.type(static_cast<uint16_t>(i)).name);
             }
             return names;
           })
      .def("encode_payload_config",
           [](const Schema& schema, const py::object& entries) {
             return to_object(serde::encode_payload_config(schema, entries.ptr()));
           })
      .def("encode_tensor_meta",
           [](const Schema& schema, const py::handle& tensor) {
             return to_object(serde::encode_tensor_meta(schema, tensor.ptr()));
           })
      .def(
          "encode_document",
          [](const Schema& schema, const py::handle& graph_module, const py::handle& signature,
             const py::handle& calls, const py::dict& facts, const py::dict& objects,
             const py::handle& treespec) {
            return serde::encode_document(schema, graph_module.ptr(), signature.ptr(), calls.ptr(),
                                          facts.ptr(), {objects.ptr(), treespec.ptr(), nullptr});
          },
          RefersToSelf())
      .def(
          "encode_part",
          [](const Schema& schema, const std::string& kind, const py::tuple& values,
             const py::dict& objects, const py::handle& treespec, const py::list& results,
             const py::dict& merged) {
            return serde::encode_part(schema, kind, values.ptr(),
                                      {objects.ptr(), treespec.ptr(), nullptr}, results.ptr(),
                                      merged.ptr());
          },
          RefersToSelf())
      .def("encode_program",
           [](const Schema& schema, const py::handle& graph_module, const py::handle& signature,
              const py::handle& calls, const py::dict& facts, const py::dict& objects,
              const py::handle& treespec, const std::optional<py::tuple>& to_check) {
             std::optional<serde::ProgramCheck> check;
             if (to_check) check = program_check(signature, calls, *to_check);
             return to_object(serde::encode_program(
                 schema, graph_module.ptr(), signature.ptr(), calls.ptr(), facts.ptr(),
                 {objects.ptr(), treespec.ptr(), check ? &*check : nullptr}));
           });
}

}  // namespace fxpress::bind
