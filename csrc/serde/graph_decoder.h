// Decodes documents of the schema into torch's graphs: programs, or parts of programs.
#pragma once

#include <cstdint>
#include <deque>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "core/budget.h"
#include "core/scoped_value.h"
#include "core/string_pool.h"
#include "fx/fakes.h"
#include "fx/names.h"
#include "fx/writer.h"
#include "py/object.h"
#include "schema/document.h"
#include "schema/names_in.h"
#include "schema/signature.h"
#include "serde/graph_values.h"
#include "serde/objects.h"
#include "serde/operators.h"
#include "serde/scalars.h"

namespace fxpress::serde {

using schema::Document;
using schema::Field;
using schema::Type;
using schema::Value;
using schema::ValueKind;

// The estimated bytes of Python objects. They are charged to the budget before the objects are
// created, so that a small file cannot exhaust the memory.
inline constexpr uint64_t kNodeBytes = 1200;
inline constexpr uint64_t kDictBytes = 240;
inline constexpr uint64_t kSlotBytes = 64;  // an item of a list or dict, a number or a text

// A named value of a graph: its entry in the graph's tables, and its node.
struct Defined {
  const Value* meta = nullptr;         // entry for the name in the graph's tables, or null
  const Document* document = nullptr;  // document that contains `meta`
  Table table = Table::kNone;          // table that contains `meta`
  Ref value;                           // the value, created from `meta` on first use
  Ref node;                            // the node with the name
};

// A graph that is being decoded, with its named values.
class OpenGraph {
 public:
  explicit OpenGraph(uint64_t scope);  // scope: a unique id of the graph

  uint64_t scope() const { return scope_; }
  fx::NameWriter& names() { return names_; }
  fx::GraphWriter& writer() { return writer_; }
  PyObject* graph() const { return writer_.graph(); }
  PyObject* root() const { return root_.get(); }

  // Returns the entry of a name; adds an empty entry for an unknown name.
  Defined& defined(std::string_view name);
  // Returns the entry of a name, or null for an unknown name.
  Defined* find(std::string_view name);
  // Returns the node with this name in the file; SerializeError if no node has the name.
  PyObject* node_named(std::string_view name);
  // Interns the name that the file requests for a new node.
  core::StringId candidate(std::string_view name);

  // nodes(): {name in the file: node}. value_names(): list of the names in the graph's tables.
  Ref nodes() const;
  Ref value_names() const;

 private:
  const uint64_t scope_;
  fx::NameWriter names_;
  fx::GraphWriter writer_;
  core::StringPool pool_;         // the names in the file
  std::vector<Defined> defined_;  // by id in pool_
  Ref root_;                      // nn.Module whose attributes are the subgraphs
};

// Decodes a program, or parts of a program in separate documents. The current graph stays open
// between calls. A call raises RuntimeError while another call is running, in any thread.
class GraphDecoder {
 public:
  // classes: a SchemaClasses. values: a fxpress._files.serde.values.Values.
  // constants: {name: custom object that an argument may refer to}.
  GraphDecoder(pybind11::object classes, pybind11::object values, pybind11::dict constants);
  GraphDecoder(const GraphDecoder&) = delete;
  GraphDecoder& operator=(const GraphDecoder&) = delete;

  // Returns (graph module, signature, module call graph, whether an argument of a node is a custom
  // object, which generated code cannot contain).
  Ref program(const pybind11::object& document);
  // Decodes a part of a program. decode_part() in graph_decoder.cpp explains `kind` and `extra`.
  Ref part(const std::string& kind, const pybind11::object& document,
           const pybind11::object& extra);

  // open() opens a graph within the current one; close() returns to the previous graph.
  void open();
  void close();
  // Discards cached numbers and tensors, for a caller that changes symbols or the fake mode.
  void forget_values();
  // Sets a node's name to a name in the file, and its meta["val"] to the value with this name.
  void name_node(const pybind11::object& node, const std::string& name);
  // Returns the value of a name in an open graph. scope: the graph's id.
  Ref value(uint64_t scope, const std::string& name);
  // Returns the node with this name in the file; empty if there is none.
  Ref node(uint64_t scope, const std::string& name);
  Ref nodes(uint64_t scope);
  Ref value_names(uint64_t scope);

  uint64_t scope() const { return current().scope(); }
  Ref graph() const { return Ref::borrow(current().graph()); }
  Ref root() const { return Ref::borrow(current().root()); }
  pybind11::dict constants() const { return constants_; }
  void set_constants(const pybind11::dict& constants);
  Ref signature() const { return Ref::borrow(signature_.get()); }
  void set_signature(const pybind11::object& signature);

 private:
  // The metadata that the file contains for a node and for its getitem nodes: (key in meta, value).
  using Metadata = std::vector<std::pair<PyObject*, Ref>>;

  // The nodes that the current node's arguments contain; all borrowed.
  struct Mentions {
    std::vector<PyObject*> nodes;   // in order of occurrence
    std::vector<PyObject*> graphs;  // the get_attr nodes of subgraphs among `nodes`
  };

  // An entry of a module stack, which describes one module.
  struct StackEntry {
    Ref key;    // str
    Ref value;  // (path, type)
  };

  struct Device {
    std::string type;
    std::optional<int64_t> index;
    Ref object;                               // torch.device
    std::optional<fx::FakeMaker> fakes = {};  // set when the first fake tensor is created
    TextMap<Ref> first = {};  // by key_of(): the device's first fake tensor with this key
  };
  enum class Role : uint8_t { kNumber, kOffset };  // kOffset: a storage offset; see number()

  // ---- calls from Python: graph_decoder.cpp ----

  // Calls use() and returns its result. Raises RuntimeError if another call is running.
  template <class Use>
  auto use(Use use);
  // Like use(), with `document` as the current document. If `keep` is true, the decoder keeps
  // `document` alive, because graphs will refer to it.
  template <class Use>
  auto read(const pybind11::object& document, bool keep, Use use);
  Ref decode_program();
  Ref decode_part(std::string_view kind, PyObject* extra);
  Ref add_part(std::string_view kind, const Value& value, PyObject* extra);
  void check_root(Type type) const;

  OpenGraph& current() { return graphs_.back(); }
  const OpenGraph& current() const { return graphs_.back(); }
  // Returns the open graph with this id; SerializeError if the graph is closed.
  OpenGraph& graph_of(uint64_t scope);
  void open_graph();
  void leave_graph() noexcept;
  // Releases all graphs and opens a new one.
  void clear_graphs();

  // ---- the current document ----

  const Value& field(const Value& record, Field name) const {
    return document_->field(record, name);
  }
  const Value& content_of(const Value& value) const { return document_->content(value); }
  std::span<const Value> children_of(const Value& value) const {
    return document_->children(value);
  }
  std::span<const Value> children_of(const Value& record, Field name) const {
    return children_of(field(record, name));
  }
  Field tag_of(const Value& value) const { return document_->tag(value); }
  std::string_view text_of(const Value& value) const { return document_->text(value); }
  std::string_view text_of(const Value& record, Field name) const {
    return text_of(field(record, name));
  }
  Ref scalar_of(const Value& value) const { return scalar(*document_, value); }
  // Returns the name of a single result; empty for a constant or a list.
  std::optional<std::string_view> name_in(const Value& result) const;
  static bool is_argument(const Value& value) {
    return value.kind == ValueKind::kUnion && value.type == static_cast<uint16_t>(Type::Argument);
  }

  void charge(uint64_t bytes) const { budget_->charge(bytes); }
  void charge(uint64_t count, uint64_t each) const { budget_->charge(count, each); }

  // ---- graphs, nodes and their results: decode_graph.cpp ----

  // Adds the nodes of a graph to the current graph.
  void write_graph(const Value& graph);
  // Adds the nodes of a graph to a new graph module.
  Ref graph_module(const Value& graph);
  void read_tables(const Value& graph);
  void input(const Value& value, size_t position);
  void outputs(const Value& graph);

  // Adds a node of the file. Raises SerializeError, with the node's text, if it cannot be read.
  void read_node(const Value& value);
  // Adds a node that calls `target`. Unlike read_node(), does not add the node's text to errors.
  PyObject* add_node(const Value& value, const Operator& target);
  core::StringId candidate_of(const Value& node, const Operator& target);
  // Returns the positional arguments of a node; adds the keyword arguments to `kwargs`.
  Ref arguments(std::span<const Value> inputs, const Operator& target, Ref& kwargs);
  Ref schema_arguments(std::span<const Value> inputs, const Operator& target, Ref& kwargs);
  Ref other_arguments(std::span<const Value> inputs, const Operator& target, Ref& kwargs);
  int64_t kind_of(const Value& input) const;

  // Decodes the results of a node: one value, or several, for which it adds getitem nodes.
  void results(const Value& value, const Operator& target, PyObject* node,
               const Metadata& metadata);
  // Adds a getitem node for each result of a node, which may have no results.
  void multiple_results(std::span<const Value> parts, PyObject* node, const Metadata& metadata);
  // Adds the getitem node for one of several results; returns the value of the result.
  Ref take(PyObject* node, size_t index, const Value& part, const Metadata& metadata);
  // Adds a getitem node for each result; returns a list of the values.
  Ref take_apart(PyObject* node, std::span<const Value> parts, const Metadata& metadata);
  // Sets a node's name to its name in the file, and sets its value. As in torch, the graph's
  // namespace keeps the name with which the node was created.
  void name_result(PyObject* node, std::string_view name);
  void name_unused(PyObject* node);
  // Whether a higher-order operator returns its only result directly, and not in a tuple. Files of
  // older releases do not contain this flag; in them, operators return the result directly.
  bool returns_itself(const Value& node) const;

  // ---- arguments: decode_argument.cpp ----

  Ref argument(const Value& value);
  // Reads a reference to a custom object. Returns a node of the graph or an object in `constants`.
  Ref object(const Value& value);
  // Clears mentions_ before arguments are read.
  void clear_mentions();
  Ref node_reference(std::string_view name);
  Ref choice(const Value& value);
  template <class Item>
  std::vector<Ref> items(const Value& list, Item&& item);
  template <class Item>
  Ref list(const Value& list, Item&& item);
  Ref tensor_list(const Value& list);
  Ref plain_list(const Value& list);
  double real_of(const Value& value) const;
  Ref dict(const Value& map);
  Ref graph_argument(const Value& value);

  // ---- the metadata of nodes: decode_node_metadata.cpp ----

  Metadata read_metadata(const Value& node);
  void add_metadata(const Metadata& metadata, PyObject* meta);
  Ref module_stack(std::string_view text);
  const StackEntry& stack_entry(std::string_view text);
  Ref source_functions(std::string_view text);
  Ref node_sources(std::string_view text);
  Ref node_sources(const Value& list);
  Ref node_source(const Value& value);

  // ---- the signature and the module calls: decode_signature.cpp ----

  Ref graph_signature(const Value& value);
  std::pair<const schema::SpecInfo&, PyObject*> spec_info(const Value& spec, const char* what);
  Ref spec_argument(const schema::SpecInfo& info, const Value& record);
  Ref spec_target(const schema::SpecInfo& info, const Value& record) const;
  Ref input_spec(const Value& spec);
  Ref output_spec(const Value& spec);
  Ref argument_spec(const Value& value);
  Ref named_spec(PyObject* type, const Value& argument);
  Ref calls(const Value& list);
  Ref call_signature(const Value& value);
  Ref argument_specs(const Value& list);

  // ---- the values of a graph, from its tables: decode_values.cpp ----

  // Returns the value of a name, borrowed. The first call creates the value, so that symbols are
  // created in the order of use.
  PyObject* value_of(Defined& defined, std::string_view name);
  Ref tensor(const Value& meta);
  Ref custom_object(const Value& record);
  Ref number(const Value& value, Role role = Role::kNumber);
  // Returns the object for `code`, a number in the file. what: the object's type, for the error.
  Ref from_table(const std::vector<Ref>& table, const Value& code, const char* what) const;
  Device& device_of(const Value& value);
  std::string key_of(const Value& meta, bool& is_symbolic);
  fx::FakeMaker& fakes_of(Device& device);
  Ref sizes(const Value& list);  // a tuple of numbers

  pybind11::object classes_object_, values_, budget_object_, resolve_;
  pybind11::dict constants_;
  const SchemaClasses* classes_;             // creates the node that an error shows
  core::Budget* budget_;                     // limits the cost of all calls
  std::vector<pybind11::object> documents_;  // the documents that graphs refer to
  bool busy_ = false;                        // whether a call is running

  const Document* document_ = nullptr;  // the current document
  OperatorTable operators_;             // targets of nodes, and operators among arguments
  Ref signature_;                       // signature of the program, once it is read
  std::deque<OpenGraph> graphs_;        // open graphs, innermost last
  uint64_t scopes_ = 0;                 // number of graphs opened so far
  size_t steps_ = 0;                    // nodes read so far; for poll_signals()

  Mentions mentions_;            // nodes in the arguments read since clear_mentions()
  bool has_objects_ = false;     // whether an argument was an object in `constants`
  bool graphs_allowed_ = false;  // whether arguments may be graphs: in a graph, not in a signature

  TextMap<Ref> stacks_;                // module stacks by text
  TextMap<StackEntry> stack_entries_;  // by text: the stacks of a module's nodes share entries
  TextMap<Ref> functions_;             // values of source_fn_stack by text

  std::vector<Ref> spec_kinds_;  // torch's InputKind and OutputKind by row of kSpecs
  std::vector<Ref> dtypes_, layouts_, memory_formats_;  // by number in the file
  std::vector<Device> devices_;                         // devices of the tensors read so far
  TextMap<Ref> numbers_;  // symbolic numbers by role, type, text and hint
};

}  // namespace fxpress::serde
