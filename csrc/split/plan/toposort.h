// Order in which partitions can run.
#pragma once

#include <span>
#include <vector>

#include "core/ids.h"

namespace fxpress::split {

using core::PartitionId;

// A topological order of the partitions, as torch.fx.passes.split_module walks them: ready ones on
// a stack, those without any dependency pushed first in order of appearance, the last pushed taken
// first. dependents[p] holds the partitions that wait for p, in order of first record, each once.
// With a cycle the result is shorter than `dependents`: those on it, and those that wait for them,
// are missing.
std::vector<PartitionId> partition_order(std::span<const std::vector<PartitionId>> dependents);

// The partitions of one cycle, each followed by one that waits for it, among those that `order`,
// the result of partition_order(), leaves out; empty if none.
std::vector<PartitionId> find_cycle(std::span<const std::vector<PartitionId>> dependents,
                                    std::span<const PartitionId> order);

}  // namespace fxpress::split
