#include <pybind11/stl.h>

#include <optional>

#include "bind/closed_class.h"
#include "bind/components.h"
#include "serde/check.h"
#include "serde/documents.h"
#include "serde/encode.h"
#include "serde/gate.h"
#include "serde/graph_reader.h"
#include "serde/kinds.h"
#include "serde/payloads.h"
#include "serde/symbols.h"

namespace fxpress::bind {

using schema::Document;
using schema::Schema;
using serde::GraphReader;
using serde::SchemaClasses;

namespace {

// to_check: fxpress._files.serde.checks.ToCheck.
serde::ProgramCheck program_check(const py::handle& signature, const py::handle& calls,
                                  const py::tuple& to_check) {
  return {to_check[0].cast<py::list>().ptr(),
          signature.ptr(),
          calls.ptr(),
          to_check[1].ptr(),
          to_check[2].ptr(),
          to_check[3].cast<bool>()};
}

void bind_schema_classes(py::module_& m) {
  closed_class<SchemaClasses>(m, "SchemaClasses", "The Python classes of the schema's types.")
      .def(
          py::init([](const Schema& schema, const py::list& classes, const py::object& make_tag) {
            return std::make_unique<SchemaClasses>(schema, classes.ptr(), make_tag.ptr());
          }),
          "schema"_a, "classes"_a, "make_tag"_a, py::pos_only(), py::keep_alive<1, 2>(),
          "Take classes in the order of the types; make_tag(field, class) makes a union's `_type`.")
      .def(
          "write",
          [](const SchemaClasses& classes, const py::handle& object) {
            return to_object(serde::write_objects(classes, object.ptr()));
          },
          "object"_a, py::pos_only(), "Return an object of the schema as JSON.");
  known_class<Document>(m, "Document")
      .def(
          "field",
          [](const Document& document, const SchemaClasses& classes, const std::string& path) {
            return to_object(serde::read_field(document, classes, path));
          },
          "classes"_a, "path"_a, py::pos_only(),
          "Return the field at a dotted path as objects; an empty path is the whole document.");
}

void bind_graph_reader(py::module_& m) {
  closed_class<GraphReader>(m, "GraphReader",
                            "A graph that is read from one document, or from parts of one.")
      .def(py::init<py::object, py::object, py::dict>(), "classes"_a, "values"_a, "constants"_a,
           py::pos_only(), "Begin with an open graph.")
      .def("program", &GraphReader::program, "document"_a, py::pos_only(),
           "Read a program: (graph module, signature, calls, whether objects have no source text).")
      .def("part", &GraphReader::part, "kind"_a, "document"_a, "extra"_a, py::pos_only(),
           "Read a document of another kind; `extra` is the thing that it belongs to.")
      .def("open", &GraphReader::open, "Begin a graph inside of the current one.")
      .def("close", &GraphReader::close, "End the current graph.")
      .def("forget_values", &GraphReader::forget_values,
           "Make numbers and tensors anew from here on: ranges or the fake mode have changed.")
      .def("name_node", &GraphReader::name_node, "node"_a, "name"_a, py::pos_only(),
           "Give a node the name that the file uses.")
      .def("value", &GraphReader::value, "scope"_a, "name"_a, py::pos_only(),
           "Return the value that a name has in an open graph.")
      .def("node", &GraphReader::node, "scope"_a, "name"_a, py::pos_only(),
           "Return the node with a name in an open graph, or None.")
      .def("nodes", &GraphReader::nodes, "scope"_a, py::pos_only(),
           "Return the nodes of an open graph by name.")
      .def("value_names", &GraphReader::value_names, "scope"_a, py::pos_only(),
           "Return the names of the values in an open graph.")
      .def_property_readonly("scope", &GraphReader::scope, "A number of the open graph's own.")
      .def_property_readonly("graph", &GraphReader::graph, "The open graph.")
      .def_property_readonly("root", &GraphReader::root, "The module of the open graph.")
      .def_property("constants", &GraphReader::constants, &GraphReader::set_constants,
                    "The constants by name.")
      .def_property("signature", &GraphReader::signature, &GraphReader::set_signature,
                    "The ExportGraphSignature that was read, or None.");
}

void bind_gate(py::module_& m) {
  m.def(
      "passes_gate",
      [](const std::string& rule, const py::str& text) {
        return serde::passes_gate(rule, text.ptr());
      },
      "rule"_a, "text"_a, py::pos_only(),
      "Return whether a text keeps the rule with this name; KeyError when there is none.");
  m.def(
      "first_refused",
      [](const std::string& rule, const py::iterable& texts) {
        return to_object(serde::first_refused(rule, texts.ptr()));
      },
      "rule"_a, "texts"_a, py::pos_only(),
      "Return the first value that is no text, or breaks the rule; None when there is none.");
  m.def(
      "gate_rules", [] { return to_object(serde::gate_rules()); },
      "Return the name of each rule, and the message for a text that breaks it.");
}

void bind_schema(py::module_& m) {
  known_class<Schema>(m, "Schema")
      .def(
          "to_document",
          [](const Schema& schema, const SchemaClasses& classes, const py::object& object) {
            return serde::to_document(schema, classes, object.ptr());
          },
          "classes"_a, "object"_a, py::pos_only(), RefersToSelf(),
          "Return objects of the schema as a document.")
      .def(
          "canonical",
          [](const Schema& schema, const SchemaClasses& classes, const py::object& program,
             const py::object& constants) {
            return to_object(
                serde::canonical_form(schema, classes, program.ptr(), constants.ptr(), nullptr));
          },
          "classes"_a, "program"_a, "constants"_a, py::pos_only(),
          "Return the canonical form of a program, as new objects.")
      .def(
          "canonical_graph",
          [](const Schema& schema, const SchemaClasses& classes, const py::object& graph,
             const py::object& constants, const py::dict& names) {
            return to_object(
                serde::canonical_form(schema, classes, graph.ptr(), constants.ptr(), names.ptr()));
          },
          "classes"_a, "graph"_a, "constants"_a, "names"_a, py::pos_only(),
          "Return the canonical form of a graph; `names` gets the new names by the old ones.")
      .def(
          "encode_payload_config",
          [](const Schema& schema, const py::object& entries) {
            return to_object(serde::encode_payload_config(schema, entries.ptr()));
          },
          "entries"_a, py::pos_only(),
          "Encode entries of (name, record, tensor, is a parameter, is pickled).")
      .def(
          "encode_tensor_meta",
          [](const Schema& schema, const py::handle& tensor) {
            return to_object(serde::encode_tensor_meta(schema, tensor.ptr()));
          },
          "tensor"_a, py::pos_only(), "Encode the metadata of a tensor.")
      .def(
          "encode_document",
          [](const Schema& schema, const py::handle& graph_module, const py::handle& signature,
             const py::handle& calls, const py::dict& facts, const py::dict& objects,
             const py::handle& treespec) {
            return serde::encode_document(schema, graph_module.ptr(), signature.ptr(), calls.ptr(),
                                          facts.ptr(), {objects.ptr(), treespec.ptr(), nullptr});
          },
          "graph_module"_a, "signature"_a, "calls"_a, "facts"_a, "objects"_a, "treespec"_a,
          py::pos_only(), RefersToSelf(),
          "Return a program as a document, without the metadata of nodes, and without a check.")
      .def(
          "encode_part",
          [](const Schema& schema, const std::string& kind, const py::tuple& values,
             const py::dict& objects, const py::handle& treespec, const py::list& results,
             const py::dict& merged) {
            return serde::encode_part(schema, kind, values.ptr(),
                                      {objects.ptr(), treespec.ptr(), nullptr}, results.ptr(),
                                      merged.ptr());
          },
          "kind"_a, "values"_a, "objects"_a, "treespec"_a, "results"_a, "merged"_a, py::pos_only(),
          RefersToSelf(), "Return a part of a program as a document; PartEncoder lists the kinds.")
      .def(
          "encode_program",
          [](const Schema& schema, const py::handle& graph_module, const py::handle& signature,
             const py::handle& calls, const py::dict& facts, const py::dict& objects,
             const py::handle& treespec, const std::optional<py::tuple>& to_check) {
            std::optional<serde::ProgramCheck> check;
            if (to_check) check = program_check(signature, calls, *to_check);
            return to_object(serde::encode_program(
                schema, graph_module.ptr(), signature.ptr(), calls.ptr(), facts.ptr(),
                {objects.ptr(), treespec.ptr(), check ? &*check : nullptr}));
          },
          "graph_module"_a, "signature"_a, "calls"_a, "facts"_a, "objects"_a, "treespec"_a,
          "to_check"_a, py::pos_only(),
          "Return a program's bytes; None when `to_check` is given and it may not be valid.");
}

}  // namespace

void bind_serde(py::module_& m) {
  m.attr("INPUT_KINDS") = texts(serde::kInputKindNames);
  m.attr("OUTPUT_KINDS") = texts(serde::kOutputKindNames);
  m.def(
      "initialize_serde", [](const py::dict& objects) { serde::initialize_symbols(objects.ptr()); },
      "objects"_a, py::pos_only(), "Fill the table of Python objects that serde works with.");
  m.def(
      "is_surely_valid",
      [](const py::handle& signature, const py::handle& calls, const py::tuple& to_check) {
        return serde::is_surely_valid(program_check(signature, calls, to_check));
      },
      "signature"_a, "calls"_a, "to_check"_a, py::pos_only(),
      "Return True when torch's verifier would accept the program; False when it may not.");
  bind_gate(m);
  bind_schema(m);
  bind_schema_classes(m);
  bind_graph_reader(m);
}

}  // namespace fxpress::bind
