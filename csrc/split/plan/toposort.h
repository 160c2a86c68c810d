// Orders partitions so that each follows the partitions that it needs.
#pragma once

#include <span>
#include <vector>

#include "core/ids.h"

namespace fxpress::split {

using core::PartitionId;

// Returns the topological order of torch.fx.passes.split_module. Partitions whose dependencies are
// done are on a stack. At first, the stack has all partitions without a dependency, in order of
// appearance. dependents[p] lists each partition that needs p once, in order of first use. If there
// are cycles, the result lacks their partitions and all partitions that depend on them.
std::vector<PartitionId> partition_order(std::span<const std::vector<PartitionId>> dependents);

// Returns the partitions of one cycle, each followed by a partition that needs it; empty without a
// cycle. `order`: the result of partition_order().
std::vector<PartitionId> find_cycle(std::span<const std::vector<PartitionId>> dependents,
                                    std::span<const PartitionId> order);

}  // namespace fxpress::split
