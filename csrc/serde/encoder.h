// From a graph and its signature to the values of the schema, sent to a sink. Five files:
// encode_program.cpp, encode_graph.cpp (graph, nodes, tables), encode_argument.cpp (arguments and
// numbers), encode_metadata.cpp, encode_part.cpp (a part alone).
#pragma once

#include <deque>
#include <string>
#include <string_view>
#include <unordered_map>
#include <unordered_set>

#include "core/flat_map.h"
#include "core/tensor_facts.h"
#include "py/object.h"
#include "schema/event_sink.h"
#include "serde/check.h"
#include "serde/graph_values.h"
#include "serde/operators.h"

namespace fxpress::fx::serde {

using ::fxpress::schema::EventSink;
using ::fxpress::schema::Field;
using ::fxpress::schema::Schema;
using ::fxpress::schema::Type;

// What a call knows beside the graph; all borrowed.
struct EncodeContext {
  PyObject* objects;          // dict: custom objects met in the graph, filled while encoding
  PyObject* treespec;         // (TreeSpec) -> str
  const ProgramCheck* check;  // what else has to hold; null: nothing is checked
  bool metadata = true;       // of nodes, or only what they compute
};

class Encoder {
 public:
  Encoder(const Schema& schema, EventSink& sink, const EncodeContext& context)
      : schema_(schema), sink_(sink), context_(context) {}

  // facts: what Python knows of the program: opset_version {str: int}, range_constraints
  // {str: (min, max)}, schema_version (major, minor), verifiers, torch_version, guards_code,
  // metadata {str: str}, namedtuple_fields {str: names}, read when its turn comes.
  // Doubtful: with a check in the context, when the program may not be valid.
  void program(PyObject* graph_module, PyObject* signature, PyObject* calls, PyObject* facts);

  void tensor_meta(PyObject* tensor);

  // entries: [(name, record, tensor or None, is a parameter, is pickled)]. A PayloadConfig.
  void payload_config(PyObject* entries);

  // One part, for those who put a program together by themselves: see encode_part().
  // results: [(name, value)] that a node defines; merged: {name of a node that is not written, as
  // another takes the same result: its name}, read and filled.
  void part(std::string_view kind, PyObject* values, PyObject* results, PyObject* merged);

 private:
  // Calls write(field) for the fields of a record, in the order of the schema.
  template <class F>
  void record(Type type, F&& write) {
    const auto& info = schema_.type(type);
    sink_.begin_record(info);
    for (size_t i = 0; i < info.fields.size(); ++i) {
      sink_.field(i);
      write(info.fields[i].id);
    }
    sink_.end_record();
  }
  // A union with this field set; write() sends its value.
  template <class F>
  void choice(Field field, F&& write) {
    open_union(field);
    write();
    sink_.end_union();
  }
  void open_union(Field field);

  // encode_program.cpp
  void graph_module(PyObject* graph_module, PyObject* signature, PyObject* calls, PyObject* facts);
  void signature(PyObject* signature);
  void input_spec(PyObject* spec);
  void constant_input(PyObject* argument);
  void output_spec(PyObject* spec);
  void argument_spec(PyObject* argument);
  Ref name_of(PyObject* argument);
  void named(Type type, PyObject* argument);
  void call_entry(PyObject* entry);
  void call_signature(PyObject* signature);
  void strings(PyObject* list);
  void string_map(PyObject* dict);

  // encode_graph.cpp
  void graph(PyObject* graph_module);
  void graph_fields(Field field, PyObject* output_value);
  void inputs();
  void node(const NodeEntry& entry);
  void node_inputs(const NodeEntry& entry);
  void inputs_of(const Operator& function, bool symbolic, PyObject* args, PyObject* kwargs);
  void named_argument(std::string_view name, PyObject* value, int64_t kind, PyObject* type);
  void node_outputs(const NodeEntry& entry);
  void table(Table table);
  void tensor_facts(const core::TensorFacts& facts, PyObject* place);

  // encode_argument.cpp
  void argument(PyObject* value, PyObject* type);
  void node_argument(PyObject* node);
  void subgraph(PyObject* node, PyObject* module, PyObject* name);
  void value_reference(Table table, PyObject* name);
  void list_argument(PyObject* list, PyObject* type);
  void number_list(Table table, PyObject* list);
  void tensor_list(PyObject* list);
  void other_argument(PyObject* value);
  void other_list(PyObject* list);
  void device(PyObject* device);
  void symbolic(Table table, PyObject* value);
  void integer(PyObject* value);
  void string(PyObject* value);
  void name_record(Type type, Field field, PyObject* name);
  const NodeEntry& entry_of(PyObject* node);
  const NodeEntry& resolved(PyObject* node);
  PyObject* tensor_name(PyObject* node);

  // encode_part.cpp
  void single_node(PyObject* node, bool whole, PyObject* results, PyObject* merged);
  const NodeEntry& entry_alone(PyObject* node);

  // encode_metadata.cpp
  void metadata(PyObject* node);
  void module_stack(PyObject* stack);
  void source_functions(PyObject* stack);
  void node_sources(PyObject* sources, std::string& text);
  void node_source(PyObject* source, std::string& text);
  int64_t graph_number(PyObject* graph_id);
  void append_operator_name(PyObject* target);

  const Schema& schema_;
  EventSink& sink_;
  EncodeContext context_;
  OperatorTable operators_;                             // of all graphs
  GraphValues* values_ = nullptr;                       // of the graph at work
  PyObject* module_ = nullptr;                          // that has the graph at work; borrowed
  PyObject* alone_ = nullptr;                           // names merged before; null: no part alone
  std::deque<NodeEntry> alone_entries_;                 // arguments of a part alone
  std::unordered_set<PyObject*> visited_;               // graph modules that were encoded
  size_t dicts_ = 0;                                    // that were written as arguments
  size_t depth_ = 0;                                    // graphs within each other
  std::unordered_map<std::string, Ref> merged_;         // name of a node that is not written, as
                                                        // another takes the same result: its name
  std::unordered_map<int64_t, int64_t> graph_numbers_;  // id of a graph -> number in the file
  struct OperatorName {
    Ref target;        // keeps the address
    std::string name;  // as in the file
  };
  core::FlatMap operator_name_ids_;           // address of a target -> position
  std::vector<OperatorName> operator_names_;  // of source_fn_stack
  Ref device_, device_type_, device_index_;   // the last device, and what it is
  std::string scratch_;                       // a text that is put together
};

}  // namespace fxpress::fx::serde
