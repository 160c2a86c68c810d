// Orders partitions so that they can run.
#pragma once

#include <span>
#include <vector>

#include "core/ids.h"

namespace fxpress::split {

using core::PartitionId;

// The topological order of torch.fx.passes.split_module: ready partitions are on a stack, first the
// partitions without a dependency in order of appearance, and the last one pushed is popped first.
// dependents[p] has each partition that waits for p once, in order of first record. If there are
// cycles, the result lacks their partitions and all partitions that wait for them.
std::vector<PartitionId> partition_order(std::span<const std::vector<PartitionId>> dependents);

// The partitions of one cycle, each followed by one that waits for it; empty if there is none.
// `order`: the result of partition_order().
std::vector<PartitionId> find_cycle(std::span<const std::vector<PartitionId>> dependents,
                                    std::span<const PartitionId> order);

}  // namespace fxpress::split
