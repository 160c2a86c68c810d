// The schema of files and its documents, as far as they need no object of torch.

#include "serde/documents.h"

#include <string>

#include "bind/closed_class.h"
#include "bind/components.h"

namespace fxpress::bind {

using schema::Document;
using schema::Schema;

void bind_documents(py::module_& m) {
  closed_class<Schema>(m, "Schema", "The types of torch's schema, and what reads and writes them.")
      .def(py::init(&serde::make_schema), "types"_a, py::pos_only(),
           "Take (name, is a union, fields) for each type; a field is (name, shape, default).")
      .def(
          "difference", &Schema::difference,
          "Return how the types differ from those that native code knows; empty for no difference.")
      .def("rules", &serde::rules_of,
           "Return each field's rule: (type, field, rule, whether native code reads the field).")
      .def("type_names", &serde::type_names, "Return the names of the types, in their order.")
      .def("read", &serde::read_document, "text"_a, "type"_a, "budget"_a = nullptr, py::pos_only(),
           RefersToSelf(),
           "Read JSON of a type; SerializeError, or ValueError where torch is not imported, names "
           "the place where the text is wrong.");
  closed_class<Document>(m, "Document", "A value of the schema that was read.")
      .def("payloads", &serde::read_payload_config,
           "Return the entries of a PayloadConfig: (name, record, is_param, use_pickle, metadata).")
      .def_property_readonly("size", &Document::bytes, "The bytes that it takes in memory.")
      .def("targets", &schema::targets_of, "Return the targets of all nodes, each once.")
      .def("hash", serde::hash_document, "traits"_a, "values"_a, py::pos_only(),
           "Return the digest of the program, and the digests of its nodes.");
}

}  // namespace fxpress::bind
