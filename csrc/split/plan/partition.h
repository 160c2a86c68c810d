// Records the values that each partition of a graph needs from outside of the partition.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "core/flat_map.h"
#include "core/graph.h"
#include "core/ids.h"

namespace fxpress::split {

using core::FlatMap;
using core::Graph;
using core::NodeId;
using core::PartitionId;

struct Partition {
  std::vector<NodeId> nodes;            // its nodes, in graph order
  std::vector<NodeId> inputs;           // values from outside, in order of first use
  std::vector<NodeId> outputs;          // values that are used outside, in order of first use
  std::vector<PartitionId> dependents;  // partitions that use its values, in order of first use
};

// Records uses across partitions in the order of torch.fx.passes.split_module, because this order
// determines the order of placeholders and outputs.
class Partitioning {
 public:
  // `assignment` gives the partition of each node, or an invalid id.
  Partitioning(const Graph& graph, std::span<const PartitionId> assignment, size_t partitions);

  // Records that `user`, a node in a partition, uses `def`. `use`: position in graph.inputs.
  // Returns true if this call makes `def` an input of the user's partition. The caller must then
  // record the binders of the symbols in `def`. An input added by record_symbol() binds a symbol
  // and has no other symbols, so nothing is left to record.
  bool record_use(uint32_t use, NodeId def, NodeId user);

  // Makes `def` an input of `user_partition`. `def` binds a symbol in the shape of another input.
  // Does nothing if `user_partition` contains `def`.
  void record_symbol(NodeId def, PartitionId user_partition);

  // Records that the graph's output node uses `def`.
  void record_output(NodeId def);

  // Frees the data that only the record functions need.
  void finish();

  const std::vector<Partition>& partitions() const { return partitions_; }

  // By position in graph.inputs: index in the inputs of the user's partition, or kLocal if none.
  std::span<const uint32_t> input_slots() const { return input_slots_; }
  static constexpr uint32_t kLocal = 0xffffffffu;

  // Returns the dependents of each partition, for partition_order().
  std::vector<std::vector<PartitionId>> dependents() const;

 private:
  FlatMap::Inserted add_input(NodeId def, PartitionId user);
  void add_output(NodeId def, PartitionId owner);
  void add_dependency(PartitionId owner, PartitionId user);

  std::span<const PartitionId> assignment_;  // partition of each node
  std::vector<Partition> partitions_;        // by partition
  std::vector<uint32_t> input_slots_;        // see input_slots()
  std::vector<uint8_t> is_output_;           // by node: whether it is in its partition's outputs
  std::vector<uint64_t> last_input_;         // by node: (partition, slot) of its last use
  FlatMap inputs_;                           // (partition, node) -> slot
  FlatMap edges_;                            // (partition, dependent) pairs that are recorded
};

}  // namespace fxpress::split
