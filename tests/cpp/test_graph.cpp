#include <doctest/doctest.h>

#include <cstdint>
#include <set>
#include <vector>

#include "core/graph.h"
#include "support.h"

using namespace fxpress::core;
using namespace fxpress::core::testing;

namespace {

std::vector<NodeId> users_of(const Graph& graph, uint32_t node) {
  const auto users = graph.users_of(NodeId(node));
  return {users.begin(), users.end()};
}

}  // namespace

TEST_CASE("graph: an empty graph has no users") {
  Graph graph;
  graph.link_users();
  CHECK(graph.users.empty());
  CHECK(graph.user_begin == std::vector<uint32_t>{0});
}

TEST_CASE("graph: inputs keep order and repetitions") {
  const Graph graph = make_graph({{}, {}, {1, 0, 1}});
  const auto inputs = graph.inputs_of(NodeId(uint32_t{2}));
  CHECK(std::vector<NodeId>(inputs.begin(), inputs.end()) == ids<NodeId>({1, 0, 1}));
}

TEST_CASE("graph: a user is listed once however often it mentions the node") {
  Graph graph = make_graph({{}, {0, 0}, {1, 0, 1, 0}});
  graph.link_users();
  CHECK(users_of(graph, 0) == ids<NodeId>({1, 2}));
  CHECK(users_of(graph, 1) == ids<NodeId>({2}));
  CHECK(users_of(graph, 2).empty());
}

TEST_CASE("graph: linking again after a change replaces the users") {
  Graph graph = make_graph({{}, {0}});
  graph.link_users();
  graph.inputs.clear();
  graph.input_begin = {0, 0, 0};
  graph.link_users();
  CHECK(users_of(graph, 0).empty());
}

TEST_CASE("graph: users are the inverse of the inputs, in graph order") {
  for_each_seed([](Random& random) {
    Graph graph = random_graph(random, 3 + random.below(60));
    graph.link_users();
    std::vector<std::set<NodeId>> expected(graph.size());
    for (uint32_t user = 0; user < graph.size(); ++user) {
      for (NodeId def : graph.inputs_of(NodeId(user))) expected[def.value()].insert(NodeId(user));
    }
    for (uint32_t i = 0; i < graph.size(); ++i) {
      REQUIRE(users_of(graph, i) == std::vector<NodeId>(expected[i].begin(), expected[i].end()));
    }
  });
}
