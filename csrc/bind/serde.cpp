#include <pybind11/stl.h>

#include <optional>

#include "bind/closed_class.h"
#include "bind/components.h"
#include "serde/check.h"
#include "serde/documents.h"
#include "serde/graph_decoder.h"
#include "serde/graph_encoder.h"
#include "serde/symbols.h"

namespace fxpress::bind {

using schema::Document;
using schema::Schema;
using serde::GraphDecoder;
using serde::SchemaClasses;

namespace {

// to_check: the tuple ToCheck of fxpress/_files/serde/checks.py.
serde::ProgramCheck program_check(PyObject* signature, PyObject* calls, const py::tuple& to_check) {
  return {to_check[0].cast<py::list>().ptr(),
          signature,
          calls,
          to_check[1].ptr(),
          to_check[2].ptr(),
          to_check[3].cast<bool>()};
}

void bind_schema_classes(py::module_& m) {
  closed_class<SchemaClasses>(m, "SchemaClasses", "The Python classes of the schema's types.")
      .def(py::init([](const Schema& schema, const py::list& classes, const py::dict& enumerations,
                       const py::object& make_tag) {
             return std::make_unique<SchemaClasses>(schema, classes.ptr(), enumerations.ptr(),
                                                    make_tag.ptr());
           }),
           "schema"_a, "classes"_a, "enumerations"_a, "make_tag"_a, py::pos_only(),
           py::keep_alive<1, 2>(),
           "classes: in the order of the types; enumerations: {class: {field: {int: member}}};\n"
           "make_tag(field, class): returns the `_type` of a union.")
      .def("write", &serde::write_objects, "object"_a, py::pos_only(),
           "Return an object of the schema as JSON.");
  known_class<Document>(m, "Document")
      .def("field", &serde::read_field, "classes"_a, "path"_a, "all_members"_a = false,
           py::pos_only(),
           "Return the field at a dotted path as objects; an empty path is the entire document.\n"
           "Enum fields contain ints as in JSON, or with `all_members` enum members.");
}

void bind_graph_decoder(py::module_& m) {
  closed_class<GraphDecoder>(m, "GraphDecoder",
                             "Decodes a program, or its parts in separate documents.")
      .def(py::init<py::object, py::object, py::dict>(), "classes"_a, "values"_a, "constants"_a,
           py::pos_only(), "Open an empty graph.")
      .def("program", &GraphDecoder::program, "document"_a, py::pos_only(),
           "Return (graph module, signature, calls, whether an argument is a custom object).")
      .def("part", &GraphDecoder::part, "kind"_a, "document"_a, "extra"_a, py::pos_only(),
           "Decode a part of a program; graph_decoder.cpp lists `extra` for each kind.")
      .def("open", &GraphDecoder::open, "Open a graph inside the current one.")
      .def("close", &GraphDecoder::close, "Close the current graph, which must not be the first.")
      .def("forget_values", &GraphDecoder::forget_values,
           "Discard cached numbers and tensors, because symbols or the fake mode have changed.")
      .def("name_node", &GraphDecoder::name_node, "node"_a, "name"_a, py::pos_only(),
           "Give a node its name in the file, and the value of this name.")
      .def("value", &GraphDecoder::value, "scope"_a, "name"_a, py::pos_only(),
           "Return the value that a name has in an open graph.")
      .def("node", &GraphDecoder::node, "scope"_a, "name"_a, py::pos_only(),
           "Return the node with a name in an open graph, or None.")
      .def("nodes", &GraphDecoder::nodes, "scope"_a, py::pos_only(),
           "Return the nodes of an open graph by name.")
      .def("value_names", &GraphDecoder::value_names, "scope"_a, py::pos_only(),
           "Return the names of the values in an open graph.")
      .def_property_readonly("scope", &GraphDecoder::scope, "A unique number of the current graph.")
      .def_property_readonly("graph", &GraphDecoder::graph, "The current graph.")
      .def_property_readonly("root", &GraphDecoder::root, "The module of the current graph.")
      .def_property("constants", &GraphDecoder::constants, &GraphDecoder::set_constants,
                    "The custom objects by name.")
      .def_property("signature", &GraphDecoder::signature, &GraphDecoder::set_signature,
                    "The ExportGraphSignature that was read, or None.");
}

void bind_gate(py::module_& m) {
  m.def("passes_gate", &serde::passes_gate, "rule"_a, "text"_a, py::pos_only(),
        "Return whether a text passes the gate rule with this name; KeyError for an unknown name.");
  m.def("first_refused", &serde::first_refused, "rule"_a, "texts"_a, py::pos_only(),
        "Return the first of `texts` that is not a str or breaks the gate rule, or None.");
  m.def("gate_rules", &serde::gate_rules,
        "Return {name of a gate rule: end of the error for a text that breaks it}.");
}

void bind_schema(py::module_& m) {
  known_class<Schema>(m, "Schema")
      .def("to_document", &serde::to_document, "classes"_a, "object"_a, py::pos_only(),
           RefersToSelf(), "Return objects of the schema as a document.")
      .def(
          "canonical",
          [](const Schema& schema, const SchemaClasses& classes, PyObject* program,
             PyObject* constants) {
            return serde::canonical_form(schema, classes, program, constants, nullptr);
          },
          "classes"_a, "program"_a, "constants"_a, py::pos_only(),
          "Return the canonical form of a program, as new objects.")
      .def("canonical_graph", &serde::canonical_form, "classes"_a, "graph"_a, "constants"_a,
           "names"_a, py::pos_only(),
           "Return the canonical form of a graph; adds {old name: new name} to `names`.")
      .def("encode_payload_config", &serde::encode_payload_config, "entries"_a, py::pos_only(),
           "Return (name, record, tensor, is a parameter, is pickled) entries as a PayloadConfig.")
      .def("encode_tensor_meta", &serde::encode_tensor_meta, "tensor"_a, py::pos_only(),
           "Encode the metadata of a tensor.")
      .def("encode_document", &serde::encode_document, "graph_module"_a, "signature"_a, "calls"_a,
           "facts"_a, "objects"_a, "treespec"_a, py::pos_only(), RefersToSelf(),
           "Return a program as a document, without the metadata of nodes. Does not check it.")
      .def("encode_part", &serde::encode_part, "kind"_a, "values"_a, "objects"_a, "treespec"_a,
           "results"_a, "merged"_a, py::pos_only(), RefersToSelf(),
           "Return a part of a program as a document; graph_encoder.h lists the kinds.")
      .def(
          "encode_program",
          [](const Schema& schema, PyObject* graph_module, PyObject* signature, PyObject* calls,
             PyObject* facts, PyObject* objects, PyObject* treespec,
             const std::optional<py::tuple>& to_check) {
            std::optional<serde::ProgramCheck> check;
            if (to_check) check = program_check(signature, calls, *to_check);
            return serde::encode_program(schema, graph_module, signature, calls, facts,
                                         {objects, treespec, check ? &*check : nullptr});
          },
          "graph_module"_a, "signature"_a, "calls"_a, "facts"_a, "objects"_a, "treespec"_a,
          "to_check"_a, py::pos_only(),
          "Return a program as JSON; None if the program may not pass the check of `to_check`.");
}

}  // namespace

void bind_documents(py::module_& m) {
  closed_class<Schema>(m, "Schema", "The types of torch's schema; reads and encodes documents.")
      .def(py::init(&serde::make_schema), "types"_a, py::pos_only(),
           "types: (name, is a union, fields) for each; a field is (name, shape, default).")
      .def("difference", &Schema::difference,
           "Return the name of a record's field that only torch or only native code has, or ''.")
      .def("rules", &serde::rules_of,
           "Return (type, field, gate rule or None, whether native code reads it) for each field.")
      .def("type_names", &serde::type_names, "Return the names of the types, in order.")
      .def("read", &serde::read_document, "text"_a, "type"_a, "budget"_a = nullptr, py::pos_only(),
           RefersToSelf(),
           "Read JSON of a type. SerializeError, without torch ValueError, names the wrong field.");
  closed_class<Document>(m, "Document", "A value of the schema.")
      .def("payloads", &serde::read_payload_config,
           "Return the entries of a PayloadConfig: (name, record, is_param, use_pickle, metadata).")
      .def_property_readonly("size", &Document::bytes, "The size of the document in memory.")
      .def("targets", &schema::targets_of, "Return the distinct targets of all nodes.")
      .def("hash", serde::hash_document, "traits"_a, "values"_a, py::pos_only(),
           "Return the digest of the program, and the digests of its nodes.");
}

void bind_serde(py::module_& m) {
  py::list specs;  // (is an InputSpec, name of the member of InputKind or OutputKind)
  for (const schema::SpecInfo& spec : schema::kSpecs) {
    const bool is_input = Schema::owner(spec.tag) == schema::Type::InputSpec;
    specs.append(py::make_tuple(is_input, spec.torch_name));
  }
  m.attr("SPEC_KINDS") = py::tuple(specs);
  m.def("initialize_serde", &serde::initialize_symbols, "objects"_a, py::pos_only(),
        "Fill the table of Python objects that serde uses.");
  m.def(
      "is_surely_valid",
      [](PyObject* signature, PyObject* calls, const py::tuple& to_check) {
        return serde::is_surely_valid(program_check(signature, calls, to_check));
      },
      "signature"_a, "calls"_a, "to_check"_a, py::pos_only(),
      "Return True if torch's verifier surely accepts the program, False in doubt.");
  bind_gate(m);
  bind_schema(m);
  bind_schema_classes(m);
  bind_graph_decoder(m);
}

}  // namespace fxpress::bind
