#include "split/plan/toposort.h"

#include <algorithm>

namespace fxpress::split {

std::vector<PartitionId> partition_order(std::span<const std::vector<PartitionId>> dependents) {
  const size_t n = dependents.size();
  std::vector<uint32_t> waiting(n, 0);
  for (const auto& list : dependents) {
    for (PartitionId user : list) ++waiting[user.value()];
  }
  std::vector<PartitionId> ready;
  for (uint32_t p = 0; p < n; ++p) {
    if (waiting[p] == 0) ready.emplace_back(p);
  }
  std::vector<PartitionId> order;
  order.reserve(n);
  while (!ready.empty()) {
    const PartitionId p = ready.back();
    ready.pop_back();
    order.push_back(p);
    for (PartitionId user : dependents[p.value()]) {
      if (--waiting[user.value()] == 0) ready.push_back(user);
    }
  }
  return order;
}

std::vector<PartitionId> find_cycle(std::span<const std::vector<PartitionId>> dependents,
                                    std::span<const PartitionId> order) {
  const size_t n = dependents.size();
  std::vector<bool> blocked(n, true);
  for (PartitionId p : order) blocked[p.value()] = false;
  // Each blocked partition has a blocked dependency, so following dependencies reaches a cycle.
  std::vector<PartitionId> dependency(n);
  for (uint32_t p = 0; p < n; ++p) {
    if (!blocked[p]) continue;
    for (PartitionId user : dependents[p]) {
      if (blocked[user.value()]) dependency[user.value()] = PartitionId(p);
    }
  }
  const auto start = std::find(blocked.begin(), blocked.end(), true);
  if (start == blocked.end()) return {};
  std::vector<uint32_t> position(n, 0);
  std::vector<PartitionId> path;
  PartitionId p(static_cast<size_t>(start - blocked.begin()));
  while (position[p.value()] == 0) {
    path.push_back(p);
    position[p.value()] = static_cast<uint32_t>(path.size());
    p = dependency[p.value()];
  }
  path.erase(path.begin(), path.begin() + position[p.value()] - 1);
  std::reverse(path.begin(), path.end());
  return path;
}

}  // namespace fxpress::split
