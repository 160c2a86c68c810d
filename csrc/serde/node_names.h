// The names in the file of the nodes of the graph at work, and the tables that have their values.
#pragma once

#include <deque>
#include <string>
#include <unordered_map>

#include "py/object.h"
#include "serde/graph_values.h"

namespace fxpress::serde {

class NodeNames {
 public:
  // A graph is at work as long as this object lives; after it, the graph before is at work again.
  // module: the module of the graph, or null when the values are those of a node alone.
  class Within {
   public:
    Within(NodeNames& of, const GraphValues& values, PyObject* module);
    ~Within();
    Within(const Within&) = delete;
    Within& operator=(const Within&) = delete;

   private:
    NodeNames& names_;
    const GraphValues* const values_;  // of the graph before
    PyObject* const module_;           // that has it
  };

  // From here on arguments of a part alone may be nodes of no graph at work. merged: {name of a
  // node that is not written, as another takes the same result: its name}; borrowed.
  void begin_part(PyObject* merged) { alone_ = merged; }

  // The values and the module of the graph at work; borrowed.
  const GraphValues& values() const { return *values_; }
  PyObject* module() const { return module_; }

  // The entry of a node; of two nodes that take the same result, that of the first.
  const NodeEntry& resolved(PyObject* node);
  // The name under which a tensor is used: borrowed.
  PyObject* tensor_name(PyObject* node);

  // Keeps what the signature needs: it is written when the graph is not at work any more.
  void remember_merged(const GraphValues& values);
  // The name of a spec's argument, as the graph in the file has it.
  Ref name_of(PyObject* argument) const;
  // Name of a node that is not written, as another takes the same result: its name.
  const std::unordered_map<std::string, Ref>& merged() const { return merged_; }

 private:
  const NodeEntry& entry_of(PyObject* node);
  const NodeEntry& entry_alone(PyObject* node);

  const GraphValues* values_ = nullptr;          // of the graph at work
  PyObject* module_ = nullptr;                   // that has it
  PyObject* alone_ = nullptr;                    // see begin_part(); null: no part alone
  std::deque<NodeEntry> alone_entries_;          // arguments of a part alone
  std::unordered_map<std::string, Ref> merged_;  // see merged()
};

}  // namespace fxpress::serde
