// Runs the first pass of encoding: finds the values that the nodes of a graph define, their names,
// and whether the graph meets the rules of torch's verifier.
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "core/flat_map.h"
#include "core/graph.h"
#include "py/object.h"
#include "schema/schema.h"
#include "serde/operators.h"

namespace fxpress::serde {

// The tables of a schema Graph, such as Graph.tensor_values. Each named value is in one of them.
enum class Table : uint8_t { kTensor, kSymInt, kSymFloat, kSymBool, kCustomObject, kNone };

// The fields of torch's schema that contain or refer to the values of a table.
struct TableFields {
  using Field = schema::Field;

  Field values;  // the table in Graph
  // Only set for tables of numbers. The comments name the fields for kSymInt.
  Field argument = Field::kUnknown;    // Argument.as_sym_int
  Field arguments = Field::kUnknown;   // Argument.as_sym_ints
  Field name = Field::kUnknown;        // SymIntArgument.as_name
  Field constant = Field::kUnknown;    // SymIntArgument.as_int
  Field known = Field::kUnknown;       // SymInt.as_int
  Field expression = Field::kUnknown;  // SymInt.as_expr
  Field hint = Field::kUnknown;        // SymExprHint.as_int
};

// The fields of each table, by Table.
inline constexpr TableFields kTableFields[] = {
    {schema::Field::Graph_tensor_values},
    {schema::Field::Graph_sym_int_values, schema::Field::Argument_as_sym_int,
     schema::Field::Argument_as_sym_ints, schema::Field::SymIntArgument_as_name,
     schema::Field::SymIntArgument_as_int, schema::Field::SymInt_as_int,
     schema::Field::SymInt_as_expr, schema::Field::SymExprHint_as_int},
    {schema::Field::Graph_sym_float_values, schema::Field::Argument_as_sym_float,
     schema::Field::Argument_as_sym_floats, schema::Field::SymFloatArgument_as_name,
     schema::Field::SymFloatArgument_as_float, schema::Field::SymFloat_as_float,
     schema::Field::SymFloat_as_expr, schema::Field::SymExprHint_as_float},
    {schema::Field::Graph_sym_bool_values, schema::Field::Argument_as_sym_bool,
     schema::Field::Argument_as_sym_bools, schema::Field::SymBoolArgument_as_name,
     schema::Field::SymBoolArgument_as_bool, schema::Field::SymBool_as_bool,
     schema::Field::SymBool_as_expr, schema::Field::SymExprHint_as_bool},
    {schema::Field::Graph_custom_obj_values},
};

// Returns the table for meta["val"] of a node; kNone if it is not a tensor or number.
Table table_of(PyObject* value);

struct NamedValue {
  Ref name;     // str: a node's name, or a new one for an unused result
  Ref value;    // meta["val"] of the node, or a part of it
  Table table;  // never kNone
};

// One output of a node in the file.
struct Output {
  enum class Kind : uint8_t { kNone, kValue, kTensors } kind;
  uint32_t first;  // position in GraphValues::values of its value, or of the first value of a list
  uint32_t count;  // number of values, if it is a list
};

struct NodeEntry {
  Ref node;                  // torch.fx.Node
  Ref name;                  // str
  const Operator* function;  // the function of a call_function node, else null
  uint32_t outputs;          // position of its first output in GraphValues::outputs
  uint32_t duplicate_of;     // index of the first getitem node for the same result, or kAbsent
  core::Op op;               // opcode of the node
  Table table;               // table of the node's value
  bool symbolic;             // the node calls a function on numbers
};

class GraphValues {
 public:
  struct Options {
    bool checks;      // whether to apply the rules of torch's verifier
    bool functional;  // if true, operators must not write their arguments
    bool top_level;   // whether the graph is the program's root graph
  };

  // Reads all nodes of a graph module. For a node that cannot be written, throws Doubtful if checks
  // are on, and SerializeError with the node's name if they are off.
  GraphValues(PyObject* module, OperatorTable& operators, const Options& options);

  // Reads the first of `nodes`; the remaining nodes are getitem nodes that take its results.
  GraphValues(std::vector<Ref> nodes, OperatorTable& operators);

  // Returns the entry of a node, or null if the node is not in this graph.
  const NodeEntry* find(PyObject* node) const;
  bool has_node(PyObject* name) const;
  std::span<const Output> outputs_of(const NodeEntry& entry) const;

  // Whether torch's verifier and Graph.lint() surely accept the graph.
  bool is_surely_valid() const { return valid_; }

  std::vector<NodeEntry> entries;  // entries of all nodes, in graph order
  std::vector<Output> outputs;     // outputs of all nodes
  std::vector<NamedValue> values;  // named values, in order of definition

 private:
  void add_entries(std::vector<Ref> nodes, OperatorTable& operators);
  template <class F>
  void guarded(PyObject* node, F&& call) const;
  void verify(const NodeEntry& entry, PyObject* graph);
  bool is_attribute(PyObject* target) const;
  void read(NodeEntry& entry);
  void read_placeholder(NodeEntry& entry, PyObject* value);
  void read_call(NodeEntry& entry, PyObject* meta);
  void add_result(NodeEntry& entry, PyObject* value);
  void add_value(PyObject* name, PyObject* value, Table table);
  void add_part(NodeEntry* user, const NodeEntry& named_after, const std::string& suffix,
                PyObject* value, Table table);
  void add_each(const NodeEntry& entry, PyObject* results);
  void add_list(const NodeEntry* taken_from, const NodeEntry& named_after,
                const std::string& prefix, PyObject* results, bool skip_none);
  void add_dict(const NodeEntry& entry, PyObject* results);

  struct User {
    Ref index;         // the second argument of getitem
    NodeEntry* entry;  // the first getitem node with this index
  };
  // Returns a node's getitem users. Marks a user with the index of an earlier user as a duplicate.
  std::vector<User> users_of(const NodeEntry& entry);
  static NodeEntry* user_at(const std::vector<User>& users, size_t index);

  uint32_t position_of(PyObject* node) const;
  bool add_name(PyObject* name, uint32_t position);
  bool is_name_at(PyObject* name, uint32_t position) const;

  PyObject* module_;  // borrowed; null for a single node
  Options options_;
  bool valid_ = true;            // see is_surely_valid()
  core::PositionTable by_node_;  // positions of nodes in `entries`
  core::PositionTable names_;    // name -> position, counted over `entries`, then unused_
  std::vector<Ref> unused_;      // names of results that no node takes
};

// Raises SerializeError with the node's name, caused by `error`. Rethrows UnsupportedError,
// InternalError, and errors that are not an Exception, such as KeyboardInterrupt.
[[noreturn]] void node_failed(PyObject* node, pybind11::error_already_set& error);

// Thrown if the program may be invalid. The caller runs torch's verifier, which decides.
struct Doubtful {};

}  // namespace fxpress::serde
