// First phase of a split: the user's callback decides, nothing else has happened yet. And the rules
// that split_module and split_module_simple share: names of partitions, symbols, marks.
#pragma once

#include <span>
#include <unordered_map>
#include <utility>
#include <vector>

#include "core/graph.h"
#include "core/ids.h"
#include "py/object.h"

namespace fxpress::split {

enum class BinderRule : uint8_t {
  kSymIntOrFloat,  // split_module: the example value is a SymInt or SymFloat
  kAnySymbolic,    // split_module_simple: anything with a symbolic expression
};

// Symbols in the shapes of values: a partition that gets a tensor also needs their binders.
class SymbolBinders {
 public:
  explicit SymbolBinders(BinderRule rule);

  // The first node whose example value is a bare symbol binds it: placeholders come first.
  void visit(core::NodeId id, PyObject* node);

  // The binders of the free symbols in a value's example, in the order of str(symbol). Symbols
  // that no node binds have no input to pass: they are left out, where torch's split_module fails
  // with a KeyError. The symbols of a value are computed once, and by the rule of
  // split_module_simple not before a binder has been visited: torch never looks at example values
  // that it cannot read there.
  std::vector<core::NodeId> needed_by(core::NodeId def, PyObject* node);

 private:
  bool is_candidate(PyObject* value) const;
  Ref free_symbols(PyObject* node) const;

  BinderRule rule_;
  Ref binders_;                                // dict: sympy symbol -> int, the node
  std::unordered_map<uint32_t, Ref> symbols_;  // by value: sorted list of symbols, or empty
};

// "0", or "pp_0" with an affix: the text that identifies a partition.
Ref partition_name(PyObject* id, PyObject* affix);

// "submod_0": where the split module has the partition called "0".
Ref submodule_name(PyObject* partition);

// Sets `_fx_partition` on nodes of a graph and takes it back unless the split succeeds.
class PartitionMarks {
 public:
  PartitionMarks() = default;
  PartitionMarks(const PartitionMarks&) = delete;
  PartitionMarks& operator=(const PartitionMarks&) = delete;
  ~PartitionMarks();

  // Nodes may be marked from now on. The list must stay as it is until keep() or the end.
  void watch(const std::vector<Ref>& nodes);
  void mark(size_t node, PyObject* value);
  void keep() { nodes_ = {}; }

 private:
  std::span<const Ref> nodes_;                    // that are watched
  std::vector<bool> marked_;                      // by node
  std::vector<std::pair<size_t, Ref>> previous_;  // marks of an earlier split, by node
};

// Nodes between an autocast or grad-mode switch and its end, wherever they land.
struct StateRegion {
  core::NodeId enter;                         // the node that switches
  core::NodeId exit;                          // the node that ends an autocast region
  Ref ids;                                    // set of what the callback returned inside
  std::vector<core::PartitionId> partitions;  // those, sorted by id
};

struct Assignment {
  std::vector<core::PartitionId> partition;  // by node; invalid for placeholders, get_attrs, output
  std::vector<Ref> partition_names;          // "0", "pp_0", ...: by partition, first seen first
  std::vector<StateRegion> autocast;         // in graph order
  std::vector<StateRegion> grad;             // in graph order
  SymbolBinders binders{BinderRule::kSymIntOrFloat};  // which nodes bind symbols

  bool has_regions() const { return !autocast.empty() || !grad.empty(); }
};

struct AssignRequest {
  PyObject* callback;  // node -> partition id
  PyObject* affix;     // str or None
  PyObject* debug;     // logger.debug, or None
};

// `nodes`: of the graph, in order. Calls the callback once for each node that can be in a
// partition, in graph order, and with autocast or grad regions as often again as
// torch.fx.passes.split_module does.
Assignment assign_partitions(const AssignRequest& request, const std::vector<Ref>& nodes,
                             PartitionMarks& marks);

// Whether a node belongs into a partition: inputs, attributes and the output do not.
bool is_call(core::Op op);

// call_function nodes of torch.amp._enter_autocast and the like.
bool is_global_state_target(PyObject* target);

}  // namespace fxpress::split
