// Writes the metadata of nodes, which say where in the source code a node comes from.
#pragma once

#include <string>
#include <unordered_map>
#include <vector>

#include "core/flat_map.h"
#include "py/object.h"
#include "serde/encoding.h"

namespace fxpress::serde {

class NodeMetadataEncoder {
 public:
  explicit NodeMetadataEncoder(Encoding& to) : out_(to.out), sink_(to.out.sink()) {}

  void metadata(PyObject* node);

 private:
  void module_stack(PyObject* stack);
  void source_functions(PyObject* stack);
  void node_sources(PyObject* sources, std::string& text);
  void node_source(PyObject* source, std::string& text);
  int64_t graph_number(PyObject* graph_id);
  void append_operator_name(PyObject* target);

  SchemaWriter& out_;
  EventSink& sink_;
  std::unordered_map<int64_t, int64_t> graph_numbers_;  // id of a graph -> number in the file
  struct OperatorName {
    Ref target;        // keeps the address
    std::string name;  // as in the file
  };
  core::FlatMap operator_name_ids_;           // address of a target -> position
  std::vector<OperatorName> operator_names_;  // of source_fn_stack
  std::string scratch_;                       // a text that is put together
};

}  // namespace fxpress::serde
