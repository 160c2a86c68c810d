// Decodes a program: from a document of the schema straight to torch's graphs.
#pragma once

#include <deque>
#include <optional>
#include <string>
#include <vector>

#include "core/budget.h"
#include "core/string_pool.h"
#include "fx/names.h"
#include "fx/writer.h"
#include "py/object.h"
#include "schema/document.h"
#include "serde/gate.h"
#include "serde/graph_values.h"
#include "serde/objects.h"
#include "serde/targets.h"
#include "serde/text_map.h"

namespace fxpress::fx::serde {

using ::fxpress::schema::Document;
using ::fxpress::schema::Field;
using ::fxpress::schema::Value;

// What decoding asks of Python. All borrowed; methods of fxpress._serde.values.Values.
struct DecodeContext {
  PyObject* values;              // number(), tensor(), fake_state(), begin_graph(), ...
  PyObject* constants;           // dict: what literal objects of the graph are
  const SchemaClasses* classes;  // to show a node that cannot be read
  core::Budget* budget;          // what all of it may cost
};

// One file, or parts of one that come in documents of their own: decode_graph.cpp (graphs, nodes),
// decode_results.cpp (what nodes return), decode_argument.cpp, decode_metadata.cpp,
// decode_values.cpp, decode_signature.cpp, decode_part.cpp.
class Decoder {
 public:
  explicit Decoder(const DecodeContext& context);
  void set_constants(PyObject* constants) { context_.constants = constants; }

  // What is read from here on, when it passes the gate. Documents must outlive the decoder.
  void read(Document& document) {
    pass_gate(document);
    document_ = &document;
  }

  // The program's parts: (graph module, signature, calls, whether the graph holds objects that
  // have no source text).
  Ref program();
  // Of another kind, as Python's objects. `extra`: what it belongs to; see decode_part.cpp.
  Ref part(std::string_view kind, PyObject* extra);

  // A graph within the one that is open, or the first; and back to the one before.
  void open();
  void close();
  // Lets go of all graphs; a new one is open.
  void clear();
  // Numbers and tensors are made anew from here on: ranges or the mode have changed.
  void forget_values();

  // Of the open graph: itself, the module that holds graphs within, a number of its own.
  PyObject* graph() const { return state_->writer.graph(); }
  PyObject* root() const { return state_->root.get(); }
  uint64_t scope() const { return state_->scope; }
  // Of an open graph: its nodes by their names in the file, one of them or null, all names of its
  // tables, the value of one.
  Ref nodes(uint64_t scope);
  PyObject* node(uint64_t scope, std::string_view name);
  Ref value_names(uint64_t scope);
  Ref value(uint64_t scope, std::string_view name);
  void name_node(PyObject* node, std::string_view name);

  PyObject* signature() const { return signature_.get(); }
  void set_signature(Ref signature) { signature_ = std::move(signature); }

 private:
  // A name that the tables of a graph or its nodes define.
  struct Defined {
    const Value* meta = nullptr;         // what a table says of it
    const Document* document = nullptr;  // where it says so
    Table table = Table::kNone;          // which
    Ref value;                           // made of `meta` when it is first asked for
    Ref node;                            // that has the name
  };
  // A graph that is being written.
  struct State {
    explicit State(uint64_t scope);
    const uint64_t scope;  // its number
    NameWriter name_writer;
    GraphWriter writer;
    core::StringPool pool;         // of the names in the file
    std::vector<Defined> defined;  // by id in the pool
    Ref root;                      // nn.Module that holds the graphs of higher-order operators
  };

  struct Device {
    std::string type;
    std::optional<int64_t> index;
    Ref object;  // torch.device
    Ref fake;    // dict: attributes of the fake tensors on it; empty until there is one
  };

  // What a file says of a node: for its meta, and for the meta of the results taken from it.
  using Metadata = std::vector<std::pair<PyObject*, Ref>>;

  // What objects take, as an estimate: charged before they are made.
  static constexpr uint64_t kNodeBytes = 1200;
  static constexpr uint64_t kTensorBytes = 1200;
  static constexpr uint32_t kMostDimensions = 64;  // of a tensor that operators of torch take
  static constexpr uint64_t kNumberBytes = 500;
  static constexpr uint64_t kSourceBytes = 800;  // of a node: NodeSource
  static constexpr uint64_t kEntryBytes = 300;   // of a module stack: texts, tuples
  static constexpr uint64_t kDictBytes = 240;
  static constexpr uint64_t kSlotBytes = 64;  // an item of a list or dict, a number or a text
  static constexpr uint64_t kGraphBytes = 16 << 10;
  static constexpr uint64_t kJsonRatio = 24;  // objects of a JSON text, by its length
  void charge(uint64_t bytes) { context_.budget->charge(bytes); }
  void charge(uint64_t count, uint64_t each) { context_.budget->charge(count, each); }

  // decode_graph.cpp
  const Value& field(const Value& record, Field name) const {
    return document_->field(record, name);
  }
  std::string_view text(const Value& value) const { return document_->text(value); }
  std::string_view text(const Value& record, Field name) const { return text(field(record, name)); }
  void leave() noexcept;
  void write_graph(const Value& graph);
  Ref graph_module(const Value& graph);
  void read_tables(const Value& graph);
  Defined& defined(std::string_view name);
  PyObject* node_named(std::string_view name);
  core::StringId candidate(std::string_view name);
  core::StringId candidate_of(const Value& node, const Target& target);
  bool returns_itself(const Value& node) const;
  void input(const Value& argument, size_t position);
  void checked_node(const Value& value);
  PyObject* node(const Value& value, const Target& target);
  static PyObject* value_of_node(PyObject* node);
  void outputs(const Value& graph);

  // decode_part.cpp
  State& state_of(uint64_t scope);
  void check_root(::fxpress::schema::Type type) const;
  Ref add_part(std::string_view kind, const Value& value, PyObject* extra);

  // decode_results.cpp
  std::optional<std::string_view> name_in(const Value& result) const;
  void results(const Value& value, const Target& target, PyObject* node, const Metadata& metadata);
  void multiple_results(std::span<const Value> parts, PyObject* node, const Metadata& metadata);
  PyObject* getitem(PyObject* node, size_t index, core::StringId candidate);
  Ref take_apart(PyObject* node, std::span<const Value> parts, const Metadata& metadata);
  Ref take(PyObject* node, size_t index, const Value& part, const Metadata& metadata);
  void name_unused(PyObject* node);
  void set_value(PyObject* node, PyObject* value);

  // decode_argument.cpp
  int64_t kind_of(const Value& input) const;
  Ref node_arguments(std::span<const Value> inputs, const Target& target, Ref& kwargs);
  Ref arguments(std::span<const Value> inputs, const Target& target, Ref& kwargs);
  Ref schema_arguments(std::span<const Value> inputs, const Target& target, Ref& kwargs);
  Ref node_reference(std::string_view name);
  Ref argument(const Value& value);
  Ref choice_argument(const Value& value);
  Ref list_argument(Field kind, const Value& list);
  Ref list_item(Field kind, const Value& item);
  Ref dict_argument(const Value& map);
  Ref object_argument(const Value& value);
  Ref graph_argument(const Value& value);

  // decode_metadata.cpp
  Metadata metadata(const Value& map);
  void add_metadata(const Metadata& metadata, PyObject* meta);
  Ref module_stack(std::string_view text);
  Ref source_functions(std::string_view text);
  Ref node_sources(std::string_view text);
  Ref node_sources(const Document& document, const Value& list);
  Ref node_source(const Document& document, const Value& value);

  // decode_values.cpp
  PyObject* value_of(Defined& defined, std::string_view name);
  Ref make_value(const Defined& defined);
  Ref tensor(const Value& meta);
  Ref custom_object(const Value& record);
  enum class Role : uint8_t { kNumber, kOffset };  // of a number: anywhere, or in a storage
  Ref number(const Value& value, Role role = Role::kNumber);
  Device& device(const Value& value);
  Ref from_table(const std::vector<Ref>& table, const Value& code, const char* what) const;
  Ref plain_sizes(const Value& list) const;
  Ref symbolic_sizes(const Value& list);

  // decode_signature.cpp
  Ref signature(const Value& value);
  Ref input_spec(const Value& spec);
  Ref output_spec(const Value& spec);
  Ref argument_spec(const Value& argument);
  Ref argument_specs(const Value& list);
  Ref named_spec(PyObject* type, const Value& argument);
  Ref calls(const Value& list);
  Ref call_signature(const Value& value);

  const Document* document_ = nullptr;
  DecodeContext context_;
  TargetTable targets_;
  std::vector<Ref> dtypes_, layouts_, memory_formats_;  // by number in the file
  std::vector<Ref> input_kinds_, output_kinds_;         // by InputKind, OutputKind
  std::deque<State> states_;                            // of the open graphs
  State* state_ = nullptr;                              // of the innermost
  Ref signature_;                                       // of the program, once it is known
  bool is_open_ = false;                                // a graph can be added to the program's
  bool has_objects_ = false;                            // see program()
  size_t steps_ = 0;                                    // nodes read: when to look for signals
  std::vector<PyObject*> inputs_;                       // nodes in the arguments of the open node
  std::vector<PyObject*> graphs_;                       // those of them that stand for a graph
  uint64_t scopes_ = 0;                                 // graphs that were opened
  std::vector<Device> devices_;                         // those that were met
  TextMap<Ref> numbers_;                                // by role, kind, text and hint
  TextMap<Ref> stacks_;                                 // module stacks by text
  TextMap<Ref> functions_;                              // source functions by text
};

}  // namespace fxpress::fx::serde
