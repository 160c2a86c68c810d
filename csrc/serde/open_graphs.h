// The graphs that are being written, one within the other, and what the names of the file mean in
// each of them.
#pragma once

#include <deque>
#include <string_view>
#include <vector>

#include "core/string_pool.h"
#include "fx/names.h"
#include "fx/writer.h"
#include "py/object.h"
#include "schema/document.h"
#include "serde/graph_values.h"

namespace fxpress::serde {

// A name that the tables of a graph or its nodes define.
struct Defined {
  const schema::Value* meta = nullptr;         // what a table says of it
  const schema::Document* document = nullptr;  // where it says so
  Table table = Table::kNone;                  // which
  Ref value;                                   // made of `meta` when first asked for
  Ref node;                                    // that has the name
};

class OpenGraph {
 public:
  explicit OpenGraph(uint64_t scope);

  uint64_t scope() const { return scope_; }
  fx::NameWriter& names() { return names_; }
  fx::GraphWriter& writer() { return writer_; }
  PyObject* graph() const { return writer_.graph(); }
  PyObject* root() const { return root_.get(); }

  // Returns the entry of a name; a name that is not known gets an empty entry.
  Defined& defined(std::string_view name);
  // Returns the entry of a name, or null when the name is not known.
  Defined* find(std::string_view name);
  // SerializeError when no node has the name.
  PyObject* node_named(std::string_view name);
  // Returns the name that a new node asks for, from a text of the file.
  core::StringId candidate(std::string_view name);

  // The nodes by their names in the file, and all names of the tables.
  Ref nodes() const;
  Ref value_names() const;

 private:
  const uint64_t scope_;  // its number
  fx::NameWriter names_;
  fx::GraphWriter writer_;
  core::StringPool pool_;         // of the names in the file
  std::vector<Defined> defined_;  // by id in the pool
  Ref root_;                      // nn.Module that holds the graphs of higher-order operators
};

class OpenGraphs {
 public:
  // values: see DecodeContext; borrowed.
  explicit OpenGraphs(PyObject* values) : values_(values) {}

  // open() opens a graph within the one that is open, or the first; close() goes back to the one
  // before.
  void open();
  void close();
  // Lets go of all graphs; a new one is open.
  void clear();

  OpenGraph& current() { return *current_; }
  const OpenGraph& current() const { return *current_; }
  // SerializeError when that graph is closed.
  OpenGraph& of(uint64_t scope);

 private:
  void leave() noexcept;

  PyObject* values_;              // is told of each graph
  std::deque<OpenGraph> graphs_;  // the innermost is the last
  OpenGraph* current_ = nullptr;  // the innermost
  uint64_t scopes_ = 0;           // graphs that were opened
};

}  // namespace fxpress::serde
