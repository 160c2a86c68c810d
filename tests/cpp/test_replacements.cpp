#include <doctest/doctest.h>

#include "export/plan/replacements.h"
#include "support.h"

using namespace fxpress::core;
using namespace fxpress::exporting;
using namespace fxpress::core::testing;

namespace {

using Moves = std::vector<uint32_t>;

Moves moves(Graph graph, const std::vector<uint32_t>& replaced) {
  graph.link_users();
  std::vector<NodeId> nodes;
  for (uint32_t id : replaced) nodes.emplace_back(id);
  return last_moves(graph, nodes);
}

}  // namespace

TEST_CASE("replacements: users of a replaced input move in their order") {
  // 0: an input; 1, 2, 3 use it
  CHECK(moves(make_graph({{}, {0}, {0}, {0}}), {0}) == Moves{0, 1, 2, 3});
}

TEST_CASE("replacements: nothing moves without a replacement") {
  CHECK(moves(make_graph({{}, {0}, {0}}), {}) == Moves{0, 0, 0});
}

TEST_CASE("replacements: an earlier replacement decides the order in a later one") {
  // 0 and 1 are inputs; 3 uses 0, so it stands behind 2 and 4 among the users of 1
  CHECK(moves(make_graph({{}, {}, {1}, {0, 1}, {1}}), {0, 1}) == Moves{0, 0, 2, 4, 3});
}

TEST_CASE("replacements: a user that mentions an input twice moves once") {
  CHECK(moves(make_graph({{}, {0, 0}, {0}}), {0}) == Moves{0, 1, 2});
}
