#include <doctest/doctest.h>

#include <algorithm>
#include <cstdint>
#include <numeric>
#include <set>
#include <vector>

#include "split/plan/toposort.h"
#include "support.h"

using namespace fxpress::core;
using namespace fxpress::split;
using namespace fxpress::core::testing;

namespace {

using Dependents = std::vector<std::vector<PartitionId>>;

Dependents dependents_of(const std::vector<std::vector<uint32_t>>& lists) {
  Dependents result;
  for (const auto& list : lists) result.push_back(ids<PartitionId>(list));
  return result;
}

// The loop of torch.fx.passes.split_module, with its tables of dependencies.
std::vector<PartitionId> order_of_torch(const Dependents& dependents) {
  std::vector<std::set<uint32_t>> dependencies(dependents.size());
  for (uint32_t p = 0; p < dependents.size(); ++p) {
    for (PartitionId user : dependents[p]) dependencies[user.value()].insert(p);
  }
  std::vector<PartitionId> roots;
  for (uint32_t p = 0; p < dependents.size(); ++p) {
    if (dependencies[p].empty()) roots.emplace_back(p);
  }
  std::vector<PartitionId> sorted;
  while (!roots.empty()) {
    const PartitionId root = roots.back();
    roots.pop_back();
    sorted.push_back(root);
    for (PartitionId user : dependents[root.value()]) {
      dependencies[user.value()].erase(root.value());
      if (dependencies[user.value()].empty()) roots.push_back(user);
    }
  }
  return sorted;
}

// Edges in random order; without cycles when `acyclic`, for then they follow a hidden ranking.
Dependents random_dependents(Random& random, bool acyclic) {
  const uint32_t n = 1 + random.below(30);
  std::vector<uint32_t> ranking(n);
  std::iota(ranking.begin(), ranking.end(), 0u);
  random.shuffle(ranking);
  const uint32_t density = 2 + random.below(20);
  Dependents result(n);
  for (uint32_t i = 0; i < n; ++i) {
    for (uint32_t k = 0; k < n; ++k) {
      const bool allowed = acyclic ? i < k : i != k;
      if (allowed && random.percent(density)) result[ranking[i]].emplace_back(ranking[k]);
    }
  }
  for (auto& list : result) random.shuffle(list);
  return result;
}

bool waits_for(const Dependents& dependents, PartitionId user, PartitionId partition) {
  return std::ranges::count(dependents[partition.value()], user) > 0;
}

// Each once, each followed by one that waits for it, the last by the first.
void require_cycle(const Dependents& dependents, const std::vector<PartitionId>& cycle) {
  CAPTURE(cycle);
  REQUIRE(!cycle.empty());
  REQUIRE(std::set<PartitionId>(cycle.begin(), cycle.end()).size() == cycle.size());
  for (size_t i = 0; i < cycle.size(); ++i) {
    REQUIRE(waits_for(dependents, cycle[(i + 1) % cycle.size()], cycle[i]));
  }
}

}  // namespace

TEST_CASE("toposort: no partitions have no order and no cycle") {
  CHECK(partition_order({}).empty());
  CHECK(find_cycle({}, {}).empty());
}

TEST_CASE("toposort: independent partitions run last one first") {
  CHECK(partition_order(dependents_of({{}, {}, {}})) == ids<PartitionId>({2, 1, 0}));
}

TEST_CASE("toposort: the dependent that became ready last runs first") {
  CHECK(partition_order(dependents_of({{1, 2}, {}, {}})) == ids<PartitionId>({0, 2, 1}));
  CHECK(partition_order(dependents_of({{2, 1}, {}, {}})) == ids<PartitionId>({0, 1, 2}));
}

TEST_CASE("toposort: a partition waits for all its dependencies") {
  CHECK(partition_order(dependents_of({{2}, {2}, {}})) == ids<PartitionId>({1, 0, 2}));
}

TEST_CASE("toposort: the order is the one of torch") {
  for_each_seed([](Random& random) {
    const Dependents dependents = random_dependents(random, true);
    const auto order = partition_order(dependents);
    REQUIRE(order.size() == dependents.size());
    REQUIRE(order == order_of_torch(dependents));
    REQUIRE(find_cycle(dependents, order).empty());
  });
}

TEST_CASE("toposort: a cycle stops its nodes and the nodes that wait for it, and no others") {
  // 0 before the cycle of 1 and 2; 3 after it; 4 apart.
  const Dependents dependents = dependents_of({{1}, {2}, {1, 3}, {}, {}});
  const auto order = partition_order(dependents);
  CHECK(order == ids<PartitionId>({4, 0}));
  require_cycle(dependents, find_cycle(dependents, order));
}

TEST_CASE("toposort: a partition that waits for itself is a cycle") {
  const Dependents dependents = dependents_of({{1}, {1}});
  CHECK(find_cycle(dependents, partition_order(dependents)) == ids<PartitionId>({1}));
}

TEST_CASE("toposort: the cycle found is real and outside of the order") {
  uint32_t cyclic = 0;
  for_each_seed([&](Random& random) {
    const Dependents dependents = random_dependents(random, false);
    const auto order = partition_order(dependents);
    REQUIRE(order == order_of_torch(dependents));
    const auto cycle = find_cycle(dependents, order);
    if (order.size() == dependents.size()) {
      REQUIRE(cycle.empty());
      return;
    }
    ++cyclic;
    require_cycle(dependents, cycle);
    for (PartitionId p : cycle) REQUIRE(std::ranges::count(order, p) == 0);
  });
  CHECK(cyclic > 50);  // or the test above tests nothing
}
