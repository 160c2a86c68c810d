// Nodes without a stack of modules get that of their users.
#include <doctest/doctest.h>

#include <set>
#include <vector>

#include "support.h"
#include "unflatten/plan/module_calls.h"
#include "unflatten/plan/outline.h"

using namespace fxpress::core;
using namespace fxpress::unflatten;
using namespace fxpress::core::testing;

namespace {

constexpr uint32_t kNone = 0xffffffffu;

// The stacks of the nodes of a graph whose first node is a placeholder and whose last one is the
// output; by number, kNone: without.
std::vector<uint32_t> adopted(const std::vector<std::vector<uint32_t>>& inputs,
                              const std::vector<uint32_t>& stacks,
                              const std::set<uint32_t>& remade = {}) {
  Graph graph = make_graph(inputs);
  graph.ops.front() = Op::kPlaceholder;
  graph.ops.back() = Op::kOutput;
  std::vector<StackId> ids;
  for (const uint32_t stack : stacks) ids.push_back(stack == kNone ? StackId() : StackId(stack));
  adopt_stacks(graph, ids, [&](NodeId node) { return remade.contains(node.value()); });
  std::vector<uint32_t> result;
  for (const StackId id : ids) result.push_back(id.valid() ? id.value() : kNone);
  return result;
}

}  // namespace

TEST_CASE("adopt_stacks: a node with users in one call belongs to it") {
  // 0: input, 1: without a stack, 2 and 3: in call 5, 4: output
  CHECK(adopted({{}, {0}, {1}, {1, 2}, {3}}, {kNone, kNone, 5, 5, kNone}) ==
        std::vector<uint32_t>{kNone, 5, 5, 5, kNone});
}

TEST_CASE("adopt_stacks: chains, whatever their length") {
  CHECK(adopted({{}, {0}, {1}, {2}, {3}, {4}}, {kNone, kNone, kNone, kNone, 7, kNone}) ==
        std::vector<uint32_t>{kNone, 7, 7, 7, 7, kNone});
}

TEST_CASE("adopt_stacks: users in several calls, the output, or no users") {
  const std::vector<uint32_t> several = {kNone, kNone, 1, 2, kNone};
  CHECK(adopted({{}, {0}, {1}, {1}, {2, 3}}, several) == several);
  const std::vector<uint32_t> returned = {kNone, kNone, 1, kNone};
  CHECK(adopted({{}, {0}, {1}, {1, 2}}, returned) == returned);
  const std::vector<uint32_t> unused = {kNone, kNone, 1, kNone};
  CHECK(adopted({{}, {0}, {0}, {2}}, unused) == unused);
}

TEST_CASE("adopt_stacks: a node in front of one that nobody can place has no place either") {
  const std::vector<uint32_t> stacks = {kNone, kNone, kNone, 1, 2, kNone};
  CHECK(adopted({{}, {0}, {1}, {2}, {2}, {3, 4}}, stacks) == stacks);
}

TEST_CASE("adopt_stacks: what is made where it is used needs none, and its input may have one") {
  CHECK(adopted({{}, {0}, {1}, {2}, {3}}, {kNone, kNone, kNone, 4, kNone}, {2}) ==
        std::vector<uint32_t>{kNone, 4, kNone, 4, kNone});
  const std::vector<uint32_t> several = {kNone, kNone, kNone, 1, 2, kNone};
  CHECK(adopted({{}, {0}, {1}, {2}, {2}, {3, 4}}, several, {2}) == several);
}

TEST_CASE("adopt_stacks: a node that belongs where it stands is in an unknown call") {
  constexpr uint32_t kInherits = OutlineSource::kInherits.value();
  const std::vector<uint32_t> stacks = {kNone, kNone, 1, kInherits, kNone};
  CHECK(adopted({{}, {0}, {1}, {1}, {2, 3}}, stacks) == stacks);
}
