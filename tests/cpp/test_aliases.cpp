#include <doctest/doctest.h>

#include "support.h"
#include "unflatten/plan/aliases.h"

using namespace fxpress::core;
using namespace fxpress::unflatten;
using namespace fxpress::core::testing;

namespace {

using Nodes = std::vector<NodeId>;

NodeId node(uint32_t id) {
  return NodeId(id);
}

}  // namespace

TEST_CASE("aliases: views of views, through nodes that may alias only") {
  // 0, 1: inputs; 2 = view(0); 3 = f(2); 4 = view(2); 5 = view(3); 6 = both(4, 1)
  const Graph graph = make_graph({{}, {}, {0}, {2}, {2}, {3}, {4, 1}});
  const auto aliases =
      find_aliases(graph, {node(0), node(1)}, [](NodeId id) { return id != node(3); });
  CHECK(aliases[0] == Nodes{node(0)});
  CHECK(aliases[2] == Nodes{node(0)});
  CHECK(aliases[3].empty());
  CHECK(aliases[4] == Nodes{node(0)});
  CHECK(aliases[5].empty());
  CHECK(aliases[6] == Nodes{node(0), node(1)});
}

TEST_CASE("aliases: only readers are queried, and only roots count") {
  const Graph graph = make_graph({{}, {}, {0}, {1}});
  Nodes asked;
  const auto aliases = find_aliases(graph, {node(1)}, [&](NodeId id) {
    asked.push_back(id);
    return true;
  });
  CHECK(asked == Nodes{node(3)});
  CHECK(aliases[2].empty());
  CHECK(aliases[3] == Nodes{node(1)});
}
