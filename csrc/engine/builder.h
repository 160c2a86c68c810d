// Defines Builder, which builds one plan. build.cpp visits the nodes, build_calls.cpp resolves the
// arguments of calls, build_slots.cpp assigns slots to values.
#pragma once

#include <map>
#include <memory>
#include <optional>
#include <unordered_map>
#include <utility>
#include <vector>

#include "engine/plan.h"
#include "py/arg_cursor.h"

namespace fxpress::engine {

class Builder {
 public:
  Builder(PyObject* module, PyObject* graph);

  // Returns the plan. Raises TypeError unless `graph` is a graph. Runs no Python code except to
  // convert constants. Must be called only once.
  std::unique_ptr<Plan> build();

 private:
  // A graph whose nodes are being visited: the root's graph or an inlined graph.
  struct Open {
    uint32_t frame;      // the frame of the graph's instructions
    uint32_t node;       // the next node to visit, an index in plan_->nodes
    uint32_t nodes_end;  // the index after the graph's last node
    uint32_t enter;      // index in plan_->enters; kNone for the root's graph
    PyObject* root;      // the graph's root node, borrowed
    std::unordered_map<PyObject*, uint32_t> env;  // from nodes to values
  };

  // The facts about a value that the builder collects before it assigns a slot.
  struct Value {
    uint32_t definition;  // instruction that sets the value; kNone: an argument of the run
    uint32_t last_use;    // instruction that reads it last; kNone: none reads it
    bool fixed;           // its slot is not shared, because Run::read_ahead() sets it early
  };

  // The range of a graph's nodes in plan_->nodes.
  struct NodeRange {
    uint32_t begin;
    uint32_t end;
  };

  // Appends an item to a table of the plan, and returns its index.
  template <class T>
  static uint32_t append(std::vector<T>& table, T item) {
    table.push_back(std::move(item));
    return static_cast<uint32_t>(table.size() - 1);
  }

  // Functions in build.cpp:
  NodeRange add_nodes(PyObject* graph);
  void add_node(Open& open, const NodeGuard& guard);
  void add_placeholder(Open& open, const NodeGuard& guard);
  uint32_t add_load(Open& open, const NodeGuard& guard);
  bool is_made_in(const Open& open, uint32_t value) const;
  void add_leave(Open& open, const NodeGuard& guard);
  uint32_t emit(const Open& open, Kind kind, const NodeGuard& guard, uint32_t detail = 0);
  uint32_t new_value(uint32_t definition, bool fixed = false);
  void define(Open& open, PyObject* node, uint32_t instruction, bool fixed = false);
  bool try_inline(Open& open, const NodeGuard& guard);
  bool bind_arguments(Open& open, const NodeGuard& guard, const Enter& enter,
                      std::vector<PyObject*>& bound);
  uint32_t find_module(uint32_t from, PyObject* path);
  uint32_t child_module(uint32_t parent, PyObject* name);
  uint32_t dispatched_module(uint32_t dispatcher, Enter& enter);
  void refuse(PyTypeObject* type);
  uint32_t add_module(PyObject* module, uint32_t parent, PyObject* name, uint32_t item);

  // Functions in build_calls.cpp:
  // An argument contains no node (kNoNode), is a node (kSelf), is a tuple or list with nodes as
  // items (kItems), or contains nodes in a dict, in a slice or at a deeper level (kDeeper).
  enum class Nodes : uint8_t { kNoNode, kSelf, kItems, kDeeper };
  Nodes nodes_in(PyObject* argument);
  bool calls_overload(PyObject* target);
  bool try_boxed(Open& open, const NodeGuard& guard);
  std::optional<Argument> resolve(const Open& open, const c10::Argument& parameter,
                                  PyObject* object, bool numbers);
  std::optional<Argument> resolve_list(const Open& open, const c10::Argument& parameter,
                                       PyObject* object);
  Argument constant(c10::IValue value);
  bool try_item(Open& open, const NodeGuard& guard);
  bool try_int(Open& open, const NodeGuard& guard);
  uint32_t value_of(const Open& open, PyObject* node) const;

  // Functions in build_slots.cpp:
  void assign_slots();
  void find_last_uses();
  void mark_moves(const Instruction& instruction);
  void find_dying();

  std::unique_ptr<Plan> plan_;
  std::vector<Open> stack_;
  std::vector<Value> values_;
  std::vector<uint32_t> enter_instructions_;           // by index in plan_->enters: its kEnter
  std::vector<uint32_t> frame_enters_;                 // by frame: index in plan_->enters, or kNone
  std::unordered_map<PyObject*, NodeRange> ranges_;    // from graphs to their nodes
  std::unordered_map<PyObject*, int64_t> next_calls_;  // dispatcher -> index of its next call
  std::unordered_map<uint32_t, std::unordered_map<PyObject*, uint32_t>> children_;
  std::map<std::pair<uint32_t, uint32_t>, uint32_t> dispatched_;  // (dispatcher, call) -> module
  std::vector<ArgCursor> walk_;                                   // a buffer of nodes_in()
};

}  // namespace fxpress::engine
