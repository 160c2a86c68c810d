#include "split/plan/partition.h"

namespace fxpress::split {

namespace {
constexpr uint64_t kNever = ~uint64_t{0};

uint64_t pair(uint32_t high, uint32_t low) {
  return (uint64_t{high} << 32) | low;
}
}  // namespace

Partitioning::Partitioning(const Graph& graph, std::span<const PartitionId> assignment,
                           size_t partitions)
    : assignment_(assignment),
      partitions_(partitions),
      input_slots_(graph.inputs.size(), kLocal),
      is_output_(graph.size(), 0),
      last_input_(graph.size(), kNever) {
  std::vector<uint32_t> sizes(partitions, 0);
  for (PartitionId p : assignment) {
    if (p.valid()) ++sizes[p.value()];
  }
  for (size_t p = 0; p < partitions; ++p) partitions_[p].nodes.reserve(sizes[p]);
  for (uint32_t i = 0; i < assignment.size(); ++i) {
    if (assignment[i].valid()) partitions_[assignment[i].value()].nodes.emplace_back(i);
  }
}

bool Partitioning::record_use(uint32_t use, NodeId def, NodeId user) {
  const PartitionId owner = assignment_[def.value()];
  const PartitionId used_by = assignment_[user.value()];
  if (owner == used_by) return false;
  const auto [slot, added] = add_input(def, used_by);
  input_slots_[use] = slot;
  if (owner.valid()) {
    add_output(def, owner);
    add_dependency(owner, used_by);
  }
  return added;
}

void Partitioning::record_symbol(NodeId def, PartitionId user_partition) {
  const PartitionId owner = assignment_[def.value()];
  if (owner == user_partition) return;
  add_input(def, user_partition);
  if (owner.valid()) {
    add_output(def, owner);
    add_dependency(owner, user_partition);
  }
}

void Partitioning::record_output(NodeId def) {
  if (const PartitionId owner = assignment_[def.value()]; owner.valid()) add_output(def, owner);
}

FlatMap::Inserted Partitioning::add_input(NodeId def, PartitionId user) {
  // Uses of a value by one partition are usually consecutive, so last_input_ has the slot. If
  // several partitions use the value alternately, inputs_ has the slot.
  std::vector<NodeId>& inputs = partitions_[user.value()].inputs;
  const uint64_t last = last_input_[def.value()];
  if (last != kNever && (last >> 32) == user.value()) return {static_cast<uint32_t>(last), false};
  const auto fresh = static_cast<uint32_t>(inputs.size());
  const auto [slot, added] = inputs_.insert(pair(user.value(), def.value()), fresh);
  if (added) inputs.push_back(def);
  last_input_[def.value()] = pair(user.value(), slot);
  return {slot, added};
}

void Partitioning::add_output(NodeId def, PartitionId owner) {
  if (is_output_[def.value()] != 0) return;
  is_output_[def.value()] = 1;
  partitions_[owner.value()].outputs.push_back(def);
}

void Partitioning::add_dependency(PartitionId owner, PartitionId user) {
  if (edges_.insert(pair(owner.value(), user.value()), 0).added) {
    partitions_[owner.value()].dependents.push_back(user);
  }
}

void Partitioning::finish() {
  is_output_ = {};
  last_input_ = {};
  inputs_ = FlatMap();
  edges_ = FlatMap();
}

std::vector<std::vector<PartitionId>> Partitioning::dependents() const {
  std::vector<std::vector<PartitionId>> result;
  result.reserve(partitions_.size());
  for (const Partition& p : partitions_) result.push_back(p.dependents);
  return result;
}

}  // namespace fxpress::split
