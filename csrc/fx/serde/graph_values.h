// Which values the nodes of a graph define, under which names: the first pass of encoding.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "core/graph.h"
#include "core/string_pool.h"
#include "fx/object_table.h"
#include "fx/py.h"
#include "fx/serde/operators.h"

namespace fxpress::fx::serde {

// The tables of a graph; every value is in one of them.
enum class Table : uint8_t { kTensor, kSymInt, kSymBool, kSymFloat, kCustomObject, kNone };

// Where a value of this type goes; kNone for what has no table.
Table table_of(PyObject* value);

struct NamedValue {
  Ref name;     // str: a node's name, or one for a result that nobody uses
  Ref value;    // what meta["val"] has
  Table table;  // never kNone
};

// One output of a node in the file.
struct Output {
  enum class Kind : uint8_t { kNone, kValue, kTensors } kind;
  uint32_t first;  // position of the value, or of the first of a list, in GraphValues::values
  uint32_t count;  // of a list
};

struct NodeEntry {
  PyObject* node;            // borrowed from GraphValues::nodes
  Ref name;                  // str
  core::Op op;               // of the node
  Table table;               // what an argument that is this node refers to
  uint32_t duplicate_of;     // entry of another getitem of the same result, or kAbsent
  const Operator* function;  // of a call_function node, else null
  uint32_t outputs;          // position of its first output in GraphValues::outputs
  uint32_t output_count;     // how many there are
  bool symbolic;             // its arguments are those of a function on numbers
};

class GraphValues {
 public:
  // Reads all nodes. SerializeError, naming the node, when a result cannot be written.
  GraphValues(PyObject* graph, OperatorTable& operators);

  // The entry of a node, or null when it is not in this graph.
  const NodeEntry* find(PyObject* node) const;

  std::vector<NodeEntry> entries;  // in graph order
  std::vector<Output> outputs;     // of all nodes
  std::vector<NamedValue> values;  // in the order in which they are defined

 private:
  void read(NodeEntry& entry);
  void read_placeholder(NodeEntry& entry, PyObject* value);
  void read_call(NodeEntry& entry, PyObject* meta);
  void add_result(NodeEntry& entry, PyObject* value);
  void add_value(PyObject* name, PyObject* value, Table table);
  void add_each(const NodeEntry& entry, PyObject* results);
  void add_list(const NodeEntry* taken_from, const NodeEntry& named_after,
                const std::string& prefix, PyObject* results, bool skip_none);
  void add_dict(const NodeEntry& entry, PyObject* results);
  void add_schema_results(NodeEntry& entry, PyObject* results);

  // The users of a node that take its results apart, by index: first ones, duplicates marked.
  struct User {
    PyObject* index;   // borrowed from the user
    NodeEntry* entry;  // the first node that takes this result
  };
  std::vector<User> users_of(const NodeEntry& entry);
  static NodeEntry* user_at(const std::vector<User>& users, size_t index);

  std::vector<Ref> nodes_;  // keeps the nodes alive
  core::FlatMap by_node_;   // address of a node -> entry
  core::StringPool names_;  // all names that are defined
};

}  // namespace fxpress::fx::serde
