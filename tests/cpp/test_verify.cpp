#include <doctest/doctest.h>

#include <cstdint>
#include <string>

#include "core/graph.h"
#include "core/verify.h"
#include "support.h"

using namespace fxpress::core;
using namespace fxpress::core::testing;

namespace {

// placeholder, placeholder, call(0, 1), call(2), output(3), with users linked.
Graph valid_graph() {
  Graph graph = make_graph({{}, {}, {0, 1}, {2}, {3}});
  graph.ops = {Op::kPlaceholder, Op::kPlaceholder, Op::kCallFunction, Op::kCallMethod, Op::kOutput};
  graph.link_users();
  return graph;
}

Graph without_users(Graph graph) {
  graph.user_begin.clear();
  graph.users.clear();
  return graph;
}

// Verifies valid_graph() after one change.
template <class Change>
std::string verify_after(Change change) {
  Graph graph = valid_graph();
  change(graph);
  return verify(graph);
}

const NodeId kFirst(uint32_t{0});

}  // namespace

TEST_CASE("verify: valid graphs pass with users and without") {
  CHECK(verify(Graph()) == "");
  CHECK(verify(valid_graph()) == "");
  CHECK(verify(without_users(valid_graph())) == "");
  for_each_seed([](Random& random) {
    Graph graph = random_graph(random, 3 + random.below(60));
    REQUIRE(verify(graph) == "");
    graph.link_users();
    REQUIRE(verify(graph) == "");
  });
}

TEST_CASE("verify: every node has a target") {
  CHECK(verify_after([](Graph& g) { g.targets.pop_back(); }) == "one target per node expected");
}

TEST_CASE("verify: every node has a range of inputs") {
  CHECK(verify_after([](Graph& g) { g.input_begin.pop_back(); }) ==
        "inputs: one range per node expected");
  CHECK(verify_after([](Graph& g) { g.input_begin.clear(); }) ==
        "inputs: one range per node expected");
}

TEST_CASE("verify: the ranges cover the inputs from the first to the last") {
  const std::string expected = "inputs: ranges do not cover the array";
  CHECK(verify_after([](Graph& g) { g.input_begin.front() = 1; }) == expected);
  CHECK(verify_after([](Graph& g) { g.inputs.push_back(kFirst); }) == expected);
  CHECK(verify_after([](Graph& g) { g.inputs.pop_back(); }) == expected);
}

TEST_CASE("verify: no range runs backwards or past the array") {
  CHECK(verify_after([](Graph& g) { g.input_begin[2] = 3; }) ==
        "node 2: inputs range runs backwards");
  CHECK(verify_after([](Graph& g) { g.input_begin[1] = 1000; }) ==
        "node 1: inputs range runs backwards");
}

TEST_CASE("verify: an input is a node of the graph") {
  CHECK(verify_after([](Graph& g) { g.inputs[2] = NodeId(uint32_t{5}); }) ==
        "node 3: input outside the graph");
  CHECK(verify_after([](Graph& g) { g.inputs[2] = NodeId(); }) ==
        "node 3: input outside the graph");
}

TEST_CASE("verify: the order of the nodes is the caller's") {
  const auto without_users_after = [](auto change) {
    Graph graph = without_users(valid_graph());
    change(graph);
    return verify(graph);
  };
  CHECK(without_users_after([](Graph& g) { g.inputs[1] = NodeId(uint32_t{4}); }) == "");
  CHECK(without_users_after([](Graph& g) { g.ops[3] = Op::kOutput; }) == "");
}

TEST_CASE("verify: the first of several broken nodes is named") {
  CHECK(verify_after([](Graph& g) { g.inputs.assign(4, NodeId()); }) ==
        "node 2: input outside the graph");
}

TEST_CASE("verify: every node has a range of users") {
  CHECK(verify_after([](Graph& g) { g.user_begin.pop_back(); }) ==
        "users: one range per node expected");
  CHECK(verify_after([](Graph& g) { g.users.pop_back(); }) ==
        "users: ranges do not cover the array");
  CHECK(verify_after([](Graph& g) { g.user_begin[1] = 1000; }) ==
        "node 1: users range runs backwards");
  CHECK(verify_after([](Graph& g) { g.user_begin.clear(); }) ==
        "users: one range per node expected");
}

TEST_CASE("verify: users are the exact inverse of the inputs") {
  const std::string expected = "users are not the inverse of the inputs";
  CHECK(verify_after([](Graph& g) { g.users[0] = NodeId(uint32_t{3}); }) == expected);
  CHECK(verify_after([](Graph& g) { g.user_begin[1] = 0; }) == expected);
  CHECK(verify_after([](Graph& g) { g.inputs[2] = kFirst; }) == expected);
}
