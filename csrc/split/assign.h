// Assigns nodes to partitions by the user's callback. This is the first phase of split_module().
// split_module_simple() also uses SymbolBinders, PartitionMarks and the functions that make names.
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
  kAnySymbolic,    // split_module_simple: the example value has a symbolic expression
};

// Finds binders: nodes whose value is a symbol. If a tensor is an input of a partition, the binders
// of the symbols in the tensor's shape are inputs of the partition too.
class SymbolBinders {
 public:
  explicit SymbolBinders(BinderRule rule);

  // Call in graph order. If the example value is a symbol without a binder, `node` binds it.
  void visit(core::NodeId id, PyObject* node);

  // Returns the binders of the free symbols in the example value of `node`, sorted by str(symbol).
  // `def` is the id of `node`. Omits symbols without a binder; torch's split_module raises KeyError
  // for such symbols. With kAnySymbolic, reads no example values before visit() has found a binder.
  // Reading may raise an error, and torch does not read the values either.
  std::vector<core::NodeId> needed_by(core::NodeId def, PyObject* node);

 private:
  bool is_candidate(PyObject* value) const;
  Ref free_symbols(PyObject* node) const;

  BinderRule rule_;
  Ref binders_;                                // dict: sympy symbol -> index of the node
  std::unordered_map<uint32_t, Ref> symbols_;  // by node: sorted list of symbols, or empty
};

// Returns the text that identifies a partition: "0", or "pp_0" with the affix "pp".
Ref partition_name(PyObject* id, PyObject* affix);

// Returns the name of a partition's attribute in the split module: "submod_0" for "0".
Ref submodule_name(PyObject* partition);

// Sets `_fx_partition` on nodes of a graph. The destructor restores the old values unless keep()
// was called.
class PartitionMarks {
 public:
  PartitionMarks() = default;
  PartitionMarks(const PartitionMarks&) = delete;
  PartitionMarks& operator=(const PartitionMarks&) = delete;
  ~PartitionMarks();

  // Sets the nodes that mark() may mark. The list must not change until keep() or the destructor.
  void watch(const std::vector<Ref>& nodes);
  void mark(size_t node, PyObject* value);
  void keep() { nodes_ = {}; }

 private:
  std::span<const Ref> nodes_;                    // the watched nodes
  std::vector<bool> marked_;                      // by node: whether mark() has marked it
  std::vector<std::pair<size_t, Ref>> previous_;  // (node, the mark that an earlier split has set)
};

// The nodes, in all partitions, from a switch of autocast or grad mode to the end of its effect.
struct StateRegion {
  core::NodeId enter;  // the node that switches the state
  core::NodeId exit;   // the node that ends an autocast region; invalid for grad mode
  Ref ids;             // set of the callback's results for the nodes of the region
  std::vector<core::PartitionId> partitions;  // the partitions of `ids`, in the order of the ids
};

struct Assignment {
  std::vector<core::PartitionId> partition;  // by node; invalid for placeholders, get_attrs, output
  std::vector<Ref> partition_names;          // "0", "pp_0", ...: by partition
  std::vector<StateRegion> autocast;         // in graph order
  std::vector<StateRegion> grad;             // in graph order
  SymbolBinders binders{BinderRule::kSymIntOrFloat};  // the nodes that bind symbols

  bool has_regions() const { return !autocast.empty() || !grad.empty(); }
};

struct AssignRequest {
  PyObject* callback;  // node -> partition id
  PyObject* affix;     // str or None
  PyObject* debug;     // logger.debug, or None
};

// Calls the callback once for each node that can be in a partition, in graph order, and again for
// nodes of autocast and grad regions, like torch.fx.passes.split_module.
Assignment assign_partitions(const AssignRequest& request, const std::vector<Ref>& nodes,
                             PartitionMarks& marks);

// Whether nodes with this op are in partitions: false for placeholder, get_attr and output.
bool is_call(core::Op op);

// Whether a function switches autocast or grad mode, which are global state.
bool is_global_state_target(PyObject* target);

}  // namespace fxpress::split
