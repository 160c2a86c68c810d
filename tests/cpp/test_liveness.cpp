#include <doctest/doctest.h>

#include <algorithm>
#include <cstdint>
#include <vector>

#include "core/graph.h"
#include "support.h"

using namespace fxpress::core;
using namespace fxpress::core::testing;

namespace {

using DeadLists = std::vector<std::vector<NodeId>>;

DeadLists dead_lists(const LastUses& last) {
  DeadLists result;
  for (size_t i = 0; i + 1 < last.begin.size(); ++i) {
    result.emplace_back(last.dead.begin() + last.begin[i], last.dead.begin() + last.begin[i + 1]);
  }
  return result;
}

bool mentions(const Graph& graph, uint32_t user, NodeId def) {
  return std::ranges::count(graph.inputs_of(NodeId(user)), def) > 0;
}

// By definition: a value is dead after `node` if the node mentions it and no later one does.
DeadLists dead_by_definition(const Graph& graph) {
  const auto n = static_cast<uint32_t>(graph.size());
  DeadLists result(n);
  for (uint32_t node = 0; node < n; ++node) {
    for (NodeId def : graph.inputs_of(NodeId(node))) {
      bool used_later = false;
      for (uint32_t later = node + 1; later < n; ++later) used_later |= mentions(graph, later, def);
      const bool listed = std::ranges::count(result[node], def) > 0;
      if (!used_later && !listed) result[node].push_back(def);
    }
  }
  return result;
}

}  // namespace

TEST_CASE("liveness: an empty graph has no last uses") {
  const LastUses last = last_uses(Graph());
  CHECK(last.begin == std::vector<uint32_t>{0});
  CHECK(last.dead.empty());
}

TEST_CASE("liveness: a value dies at its last user, in the order of the inputs, once") {
  const Graph graph = make_graph({{}, {}, {0, 1}, {1, 0, 1}});
  CHECK(dead_lists(last_uses(graph)) == DeadLists{{}, {}, {}, ids<NodeId>({1, 0})});
}

TEST_CASE("liveness: a value without users is never listed") {
  const Graph graph = make_graph({{}, {}, {1}});
  CHECK(dead_lists(last_uses(graph)) == DeadLists{{}, {}, ids<NodeId>({1})});
}

TEST_CASE("liveness: agrees with the definition on random graphs") {
  for_each_seed([](Random& random) {
    const Graph graph = random_graph(random, 3 + random.below(60));
    REQUIRE(dead_lists(last_uses(graph)) == dead_by_definition(graph));
  });
}
