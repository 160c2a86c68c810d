// First phase of a split: the user's callback decides, nothing else has happened yet.
#pragma once

#include <span>
#include <utility>
#include <vector>

#include "core/graph.h"
#include "core/ids.h"
#include "py/object.h"
#include "split/shape_symbols.h"

namespace fxpress::split {

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
