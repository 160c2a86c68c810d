// Encodes exported programs, or parts of programs, as calls of an EventSink.
#pragma once

#include <cstdint>
#include <deque>
#include <string>
#include <string_view>
#include <unordered_map>
#include <unordered_set>

#include "core/scoped_value.h"
#include "core/text_hash.h"
#include "py/calls.h"
#include "py/object.h"
#include "py/object_table.h"
#include "schema/document.h"
#include "schema/signature.h"
#include "serde/check.h"
#include "serde/graph_values.h"
#include "serde/objects.h"
#include "serde/operators.h"
#include "serde/scalars.h"
#include "serde/symbols.h"

namespace fxpress::serde {

using schema::EventSink;
using schema::Field;
using schema::Schema;
using schema::Type;

// Writes records, unions and lists of the schema to a sink.
class SchemaWriter {
 public:
  SchemaWriter(const Schema& schema, EventSink& sink) : schema_(schema), sink_(sink) {}

  const Schema& schema() const { return schema_; }

  // Calls write(field) for each field of a record, in schema order.
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
  // Writes a union with this field set. write() writes the value of the field.
  template <class F>
  void choice(Field field, F&& write) {
    open_union(field);
    write();
    sink_.end_union();
  }
  // Writes a list or tuple as a list. Calls write(item) for each item.
  template <class F>
  void list(PyObject* items, F&& write) {
    sink_.begin_list();
    for (Py_ssize_t i = 0; i < PySequence_Fast_GET_SIZE(items); ++i) {
      write(PySequence_Fast_GET_ITEM(items, i));
    }
    sink_.end_list();
  }
  // Writes a dict with str keys as a map. Calls write(value) for each value.
  template <class F>
  void map(PyObject* dict, F&& write) {
    sink_.begin_map();
    for (const auto& [key, value] : DictRange(dict)) {
      this->key(key);
      write(value);
    }
    sink_.end_map();
  }

  void string(PyObject* text) { sink_.string(Text(text).view()); }
  void key(PyObject* text) { sink_.key(Text(text).view()); }
  void integer(PyObject* value) { write_integer(value, sink_); }
  // Writes any sequence of str as a list.
  void strings(PyObject* sequence) {
    const Ref held = Ref::steal(PySequence_Tuple(sequence));
    list(held.get(), [&](PyObject* text) { string(text); });
  }

 private:
  void open_union(Field field) {
    const int position = schema_.place(field);
    const auto& info = schema_.type(Schema::owner(field));
    if (position < 0) {
      raise(symbols.unsupported_error,
            "the schema of this torch cannot represent the %s of this graph", info.name.c_str());
    }
    sink_.begin_union(info, static_cast<size_t>(position));
  }

  const Schema& schema_;
  EventSink& sink_;
};

// Arguments of the encoding functions. All references are borrowed.
struct EncodeContext {
  PyObject* objects = nullptr;          // dict of custom objects, filled by the call
  PyObject* treespec = nullptr;         // (TreeSpec) -> str
  const ProgramCheck* check = nullptr;  // the program to check; null: no checks
  bool metadata = true;                 // whether to write the metadata of nodes
};

// The names that the current graph's nodes have in the file, and the tables that contain the names.
class NodeNames {
 public:
  // A graph is current while its Within exists. module: the graph's module, or null if `values`
  // belong to a single node.
  class Within {
   public:
    Within(NodeNames& names, const GraphValues& values, PyObject* module)
        : values_(names.values_, &values), module_(names.module_, module) {}

   private:
    core::ScopedValue<const GraphValues*> values_;
    core::ScopedValue<PyObject*> module_;
  };

  // Starts a part for encode_part(). Its arguments may be nodes outside the current graph. merged:
  // a borrowed dict that maps names as merged() does.
  void begin_part(PyObject* merged) { alone_ = merged; }

  // The values and the module of the current graph; borrowed.
  const GraphValues& values() const { return *values_; }
  PyObject* module() const { return module_; }

  // Returns the entry of a node. If the node is a getitem node and an earlier getitem node takes
  // the same result, returns the entry of the earlier node.
  const NodeEntry& resolved(PyObject* node);
  // Returns the name by which arguments refer to the tensor of a node; borrowed.
  PyObject* tensor_name(PyObject* node);

  // Fills merged() from a graph. The signature is written after the graph, and uses merged().
  void remember_merged(const GraphValues& values);
  // Returns the name in the file for the argument of a spec.
  Ref name_of(PyObject* argument) const;
  // Returns {name of a getitem node that is not written: name of the node that replaces it}.
  const core::TextMap<Ref>& merged() const { return merged_; }

 private:
  const NodeEntry& entry_of(PyObject* node);
  const NodeEntry& entry_alone(PyObject* node);

  const GraphValues* values_ = nullptr;  // the current graph's values
  PyObject* module_ = nullptr;           // the current graph's module
  PyObject* alone_ = nullptr;            // the dict of begin_part(), or null
  std::deque<NodeEntry> alone_entries_;  // the results of entry_alone()
  core::TextMap<Ref> merged_;
};

// Writes one program, or one part of a program, to a sink.
class GraphEncoder {
 public:
  GraphEncoder(const Schema& schema, EventSink& sink, const EncodeContext& context)
      : out_(schema, sink), sink_(sink), context_(context) {}
  GraphEncoder(const GraphEncoder&) = delete;
  GraphEncoder& operator=(const GraphEncoder&) = delete;

  // facts: a dict with opset_version {str: int}, range_constraints {str: (min, max)},
  // schema_version (major, minor), verifiers, torch_version, guards_code, metadata {str: str} and
  // namedtuple_fields {str: names}. Reads each fact just before writing it. All arguments are
  // borrowed. Throws Doubtful if the context has a check and the program may be invalid.
  void program(PyObject* graph_module, PyObject* signature, PyObject* calls, PyObject* facts);
  // Writes one part; see encode_part() for the arguments.
  void part(std::string_view kind, PyObject* values, PyObject* results, PyObject* merged);
  // entries: [(name, record, tensor or None, is a parameter, is pickled)].
  void payload_config(PyObject* entries);
  void tensor_meta(PyObject* tensor);

 private:
  // ---- programs and parts: encode.cpp ----

  void graph_module(PyObject* graph_module, PyObject* signature, PyObject* calls, PyObject* facts);
  // Writes a node, or only its outputs if `with_inputs` is false. Fills `results` and `merged`.
  void single_node(PyObject* node, bool with_inputs, PyObject* results, PyObject* merged);

  // ---- graphs and nodes: encode_graph.cpp ----

  // Writes a module's graph. Throws Doubtful if the context has a check and the graph may fail it.
  void graph(PyObject* graph_module);
  void write_graph(PyObject* graph_module);
  void graph_field(Field field, PyObject* output_value);
  void graph_input(const NodeEntry& entry);
  void graph_outputs(PyObject* output_value);
  void nodes();
  void table(Table table);

  void node(const NodeEntry& entry);
  void outputs(const NodeEntry& entry);
  void inputs_of(const NodeEntry& entry);
  // Writes the list of a call's arguments. args: tuple; kwargs: dict.
  void inputs(const Operator& function, bool symbolic, PyObject* args, PyObject* kwargs);
  void special_inputs(PyObject* node);
  void symbolic_inputs(const Operator& function, PyObject* args, PyObject* kwargs);
  void schema_inputs(const Operator& function, PyObject* args, PyObject* kwargs);
  void other_inputs(PyObject* args, PyObject* kwargs);
  void named_argument(std::string_view name, PyObject* value, int64_t kind, PyObject* type);

  // ---- arguments of nodes, graphs and signatures: encode_argument.cpp ----

  // type: the argument's type in the operator's schema, used for an empty list; or null.
  void argument(PyObject* value, PyObject* type);
  // Writes a reference to a value by name.
  void value_reference(Table table, PyObject* name);
  void node_argument(PyObject* node);
  void attribute(PyObject* node);
  void complex_number(PyObject* value);
  void dict(PyObject* dict);
  void other_argument(PyObject* value);

  // Writes a list or tuple. The file has a field for each item type, so the items decide the field.
  void list(PyObject* list, PyObject* type);
  void empty_list(PyObject* type);
  // Each of the next four functions writes a list and returns true if the types of all items fit.
  bool plain_list(PyObject* items);
  bool number_list(PyObject* items);
  bool tensor_list(PyObject* items);
  bool nested_list(PyObject* items);
  void other_list(PyObject* items);
  // write_list() and numbers() always return true, which their callers return.
  template <class F>
  bool write_list(Field field, PyObject* items, F&& each);
  bool numbers(Table table, PyObject* items);
  void optional_tensor(PyObject* name);
  void tensor(PyObject* name);

  // ---- the metadata of nodes: encode_node_metadata.cpp ----

  void metadata(PyObject* node);
  void module_stack(PyObject* stack);
  void source_functions(PyObject* stack);
  void node_sources(PyObject* sources, std::string& text);
  void node_source(PyObject* source, std::string& text);
  int64_t graph_number(PyObject* graph_id);
  void append_operator_name(PyObject* target);

  // ---- the signature and the module calls: encode_signature.cpp ----

  void graph_signature(PyObject* signature);
  void input_spec(PyObject* object);
  void output_spec(PyObject* object);
  void spec(const schema::SpecInfo& info, PyObject* object);
  void argument_spec(PyObject* spec);
  void constant_input(PyObject* argument);
  void named(Type type, PyObject* argument);
  // Writes a sequence of entries of the module call graph.
  void module_calls(PyObject* entries);
  void module_call(PyObject* entry);
  void call_signature(PyObject* signature);

  // ---- values: encode_values.cpp ----

  // Writes an entry of a table of numbers: a constant, or an expression with its hint.
  void symbolic(Table table, PyObject* value);
  // Writes a CustomObjArgument with `class_fqn` of `spec`. name: null means the name of `spec`.
  void custom_object(PyObject* spec, PyObject* name = nullptr);
  void device(PyObject* device);

  SchemaWriter out_;
  EventSink& sink_;
  const EncodeContext context_;
  OperatorTable operators_;                // operators of all graphs
  NodeNames names_;                        // names of the current graph's nodes
  std::unordered_set<PyObject*> written_;  // graph modules written so far; only with a check
  size_t depth_ = 0;                       // number of graphs being written
  size_t dicts_ = 0;                       // number of dicts written

  std::unordered_map<int64_t, int64_t> graph_numbers_;  // id of a graph -> number in the file
  ObjectMap<std::string> operator_names_;               // names of functions in source_fn_stack
  std::string scratch_;                                 // reused for building texts

  Ref device_, device_type_, device_index_;  // the device of the last tensor, and its attributes
  Ref texts_;                                // dict: the texts of symbolic expressions
};

// Returns a program as JSON bytes, or None if the program may be invalid; see
// GraphEncoder::program() for the arguments.
Ref encode_program(const Schema& schema, PyObject* graph_module, PyObject* signature,
                   PyObject* calls, PyObject* facts, const EncodeContext& context);

// Returns a program as a document, without the metadata of nodes and without checks.
schema::Document encode_document(const Schema& schema, PyObject* graph_module, PyObject* signature,
                                 PyObject* calls, PyObject* facts, PyObject* objects,
                                 PyObject* treespec);

// Returns a part of a program as a document. Contents of `values`, by `kind`:
//   argument                 (value, its type in the operator's schema)
//   inputs                   (described operator, args, kwargs)
//   node, outputs, metadata  (node,)
//   graph                    (graph module,)
//   signature, input_spec, output_spec, argument_spec, call_signature, call: (this object,)
// Appends (name, value) to `results` for each value that a node defines. Reads and extends
// `merged`, which maps names as NodeNames::merged() does.
schema::Document encode_part(const Schema& schema, const std::string& kind,
                             const pybind11::tuple& values, PyObject* objects, PyObject* treespec,
                             const pybind11::list& results, const pybind11::dict& merged);

// Returns a tensor's metadata, a TensorMeta, as JSON bytes.
Ref encode_tensor_meta(const Schema& schema, PyObject* tensor);

// Returns a PayloadConfig as JSON bytes; see GraphEncoder::payload_config().
Ref encode_payload_config(const Schema& schema, PyObject* entries);

// Returns a schema object as JSON bytes; TypeError if the object does not match the schema.
Ref write_objects(const SchemaClasses& classes, PyObject* object);

}  // namespace fxpress::serde
