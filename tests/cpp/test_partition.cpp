#include <doctest/doctest.h>

#include <algorithm>
#include <cstdint>
#include <map>
#include <utility>
#include <vector>

#include "core/graph.h"
#include "split/plan/partition.h"
#include "support.h"

using namespace fxpress::core;
using namespace fxpress::split;
using namespace fxpress::core::testing;

namespace {

constexpr uint32_t kLocal = Partitioning::kLocal;

// A graph, the partition of each node, and the symbol binders that come with each value.
struct Problem {
  Graph graph;
  std::vector<PartitionId> assignment;         // by node, invalid for placeholders and the output
  size_t partitions = 0;                       // partitions that appear in `assignment`
  std::map<NodeId, std::vector<NodeId>> bind;  // by value: the binders of the symbols of its shape
};

// As split_module does it: partitions are numbered by first appearance, and a node that binds a
// symbol has no other symbol.
Problem random_problem(Random& random) {
  Problem problem;
  problem.graph = random_graph(random, 3 + random.below(60));
  const auto n = static_cast<uint32_t>(problem.graph.size());
  const uint32_t wanted = 1 + random.below(6);
  std::map<uint32_t, PartitionId> seen;
  for (uint32_t i = 0; i < n; ++i) {
    PartitionId partition;
    if (problem.graph.ops[i] == Op::kCallFunction) {
      partition = seen.try_emplace(random.below(wanted), seen.size()).first->second;
    }
    problem.assignment.push_back(partition);
  }
  problem.partitions = seen.size();
  std::vector<NodeId> symbols;
  for (uint32_t i = 0; i < n; ++i) {
    if (random.percent(30)) {
      symbols.emplace_back(i);
      problem.bind[NodeId(i)] = {NodeId(i)};
    } else if (!symbols.empty()) {
      for (uint32_t k = random.below(3); k > 0; --k) {
        problem.bind[NodeId(i)].push_back(symbols[random.below(symbols.size())]);
      }
    }
  }
  return problem;
}

// Calls use(position, def, user) and output(def) in the order in which split_module meets the uses.
template <class Use, class Output>
void for_each_use(const Problem& problem, Use use, Output output) {
  const Graph& graph = problem.graph;
  for (uint32_t i = 0; i < graph.size(); ++i) {
    for (uint32_t k = graph.input_begin[i]; k < graph.input_begin[i + 1]; ++k) {
      if (graph.ops[i] == Op::kOutput) {
        output(graph.inputs[k]);
      } else {
        use(k, graph.inputs[k], NodeId(i));
      }
    }
  }
}

std::vector<NodeId> binders(const Problem& problem, NodeId def) {
  const auto found = problem.bind.find(def);
  return found == problem.bind.end() ? std::vector<NodeId>() : found->second;
}

Partitioning partitioning_of(const Problem& problem) {
  Partitioning result(problem.graph, problem.assignment, problem.partitions);
  for_each_use(
      problem,
      [&](uint32_t use, NodeId def, NodeId user) {
        if (!result.record_use(use, def, user)) return;
        for (NodeId binder : binders(problem, def)) {
          result.record_symbol(binder, problem.assignment[user.value()]);
        }
      },
      [&](NodeId def) { result.record_output(def); });
  return result;
}

// record_cross_partition_use of torch.fx.passes.split_module, word by word. A vector with add() is
// the dict with setdefault() that keeps the order of insertion.
struct Reference {
  struct Tables {
    std::vector<NodeId> inputs;
    std::vector<NodeId> outputs;
    std::vector<PartitionId> dependents;
  };
  std::map<PartitionId, Tables> partitions;  // by partition
  std::map<uint32_t, NodeId> crossings;      // by use that crosses: the value

  template <class T>
  static void add(std::vector<T>& dict, T key) {
    if (std::ranges::count(dict, key) == 0) dict.push_back(key);
  }

  void record(const Problem& problem, NodeId def, PartitionId used) {
    const PartitionId defined = problem.assignment[def.value()];
    if (defined == used) return;
    if (defined.valid()) {
      add(partitions[defined].outputs, def);
      if (used.valid()) add(partitions[defined].dependents, used);
    }
    if (!used.valid()) return;
    add(partitions[used].inputs, def);
    for (NodeId binder : binders(problem, def)) {
      const PartitionId owner = problem.assignment[binder.value()];
      if (owner == used) continue;  // torch makes the partition wait for itself here
      add(partitions[used].inputs, binder);
      if (!owner.valid()) continue;
      add(partitions[owner].outputs, binder);
      add(partitions[owner].dependents, used);
    }
  }

  explicit Reference(const Problem& problem) {
    for_each_use(
        problem,
        [&](uint32_t use, NodeId def, NodeId user) {
          const PartitionId used = problem.assignment[user.value()];
          if (problem.assignment[def.value()] != used) crossings[use] = def;
          record(problem, def, used);
        },
        [&](NodeId def) { record(problem, def, PartitionId()); });
  }
};

// A partition per node, none where the list says 9.
std::vector<PartitionId> assign(const std::vector<uint32_t>& partitions) {
  std::vector<PartitionId> result;
  for (uint32_t p : partitions) result.push_back(p == 9 ? PartitionId() : PartitionId(p));
  return result;
}

NodeId node(uint32_t i) {
  return NodeId(i);
}

}  // namespace

TEST_CASE("partition: nodes are those assigned, in graph order") {
  const Graph graph = make_graph({{}, {}, {}, {}});
  const auto assignment = assign({9, 1, 0, 1});
  const Partitioning result(graph, assignment, 2);
  CHECK(result.partitions()[0].nodes == ids<NodeId>({2}));
  CHECK(result.partitions()[1].nodes == ids<NodeId>({1, 3}));
}

TEST_CASE("partition: a use inside of a partition leaves no trace") {
  const Graph graph = make_graph({{}, {0}});
  const auto assignment = assign({0, 0});
  Partitioning result(graph, assignment, 1);
  CHECK_FALSE(result.record_use(0, node(0), node(1)));
  CHECK(result.partitions()[0].inputs.empty());
  CHECK(result.partitions()[0].outputs.empty());
  CHECK(result.partitions()[0].dependents.empty());
  CHECK(result.input_slots()[0] == kLocal);
}

TEST_CASE("partition: a value from nowhere is an input and nobody's output") {
  const Graph graph = make_graph({{}, {0}});
  const auto assignment = assign({9, 0});
  Partitioning result(graph, assignment, 1);
  CHECK(result.record_use(0, node(0), node(1)));
  CHECK(result.partitions()[0].inputs == ids<NodeId>({0}));
  CHECK(result.partitions()[0].dependents.empty());
  CHECK(result.input_slots()[0] == 0);
}

TEST_CASE("partition: only the first use makes an input and all uses share its slot") {
  const Graph graph = make_graph({{}, {}, {1, 0, 1}, {0}});
  const auto assignment = assign({0, 0, 1, 1});
  Partitioning result(graph, assignment, 2);
  CHECK(result.record_use(0, node(1), node(2)));
  CHECK(result.record_use(1, node(0), node(2)));
  CHECK_FALSE(result.record_use(2, node(1), node(2)));
  CHECK_FALSE(result.record_use(3, node(0), node(3)));
  CHECK(result.partitions()[1].inputs == ids<NodeId>({1, 0}));
  CHECK(result.partitions()[0].outputs == ids<NodeId>({1, 0}));
  const auto slots = result.input_slots();
  CHECK(std::vector<uint32_t>(slots.begin(), slots.end()) == std::vector<uint32_t>{0, 1, 0, 1});
}

TEST_CASE("partition: a value that partitions use in turns keeps one slot in each") {
  const Graph graph = make_graph({{}, {0}, {0}, {0}, {0}});
  const auto assignment = assign({9, 0, 1, 0, 1});
  Partitioning result(graph, assignment, 2);
  CHECK(result.record_use(0, node(0), node(1)));
  CHECK(result.record_use(1, node(0), node(2)));
  CHECK_FALSE(result.record_use(2, node(0), node(3)));
  CHECK_FALSE(result.record_use(3, node(0), node(4)));
  CHECK(result.partitions()[0].inputs == ids<NodeId>({0}));
  CHECK(result.partitions()[1].inputs == ids<NodeId>({0}));
}

TEST_CASE("partition: what the graph returns is an output that nobody waits for") {
  const Graph graph = make_graph({{}, {}, {1, 0, 1}});
  const auto assignment = assign({9, 0, 9});
  Partitioning result(graph, assignment, 1);
  for (uint32_t def : {1u, 0u, 1u}) result.record_output(node(def));
  CHECK(result.partitions()[0].outputs == ids<NodeId>({1}));
  CHECK(result.dependents() == std::vector<std::vector<PartitionId>>{{}});
}

TEST_CASE("partition: a symbol becomes an input without a use unless it is defined there") {
  const Graph graph = make_graph({{}, {}, {}});
  const auto assignment = assign({9, 0, 1});
  Partitioning result(graph, assignment, 2);
  result.record_symbol(node(0), PartitionId(uint32_t{1}));
  result.record_symbol(node(1), PartitionId(uint32_t{1}));
  result.record_symbol(node(2), PartitionId(uint32_t{1}));
  CHECK(result.partitions()[1].inputs == ids<NodeId>({0, 1}));
  CHECK(result.partitions()[0].outputs == ids<NodeId>({1}));
  CHECK(result.partitions()[0].dependents == ids<PartitionId>({1}));
  CHECK(result.partitions()[1].outputs.empty());
  CHECK(result.partitions()[1].dependents.empty());
}

TEST_CASE("partition: tables equal torch's on random graphs") {
  for_each_seed([](Random& random) {
    const Problem problem = random_problem(random);
    const Partitioning actual = partitioning_of(problem);
    Reference expected(problem);
    REQUIRE(actual.partitions().size() == problem.partitions);
    for (uint32_t p = 0; p < problem.partitions; ++p) {
      CAPTURE(p);
      const Partition& partition = actual.partitions()[p];
      REQUIRE(partition.inputs == expected.partitions[PartitionId(p)].inputs);
      REQUIRE(partition.outputs == expected.partitions[PartitionId(p)].outputs);
      REQUIRE(partition.dependents == expected.partitions[PartitionId(p)].dependents);
      REQUIRE(partition.dependents == actual.dependents()[p]);
      REQUIRE(partition.nodes.size() ==
              static_cast<size_t>(std::ranges::count(problem.assignment, PartitionId(p))));
      REQUIRE(std::ranges::is_sorted(partition.nodes));
    }
  });
}

TEST_CASE("partition: slots point at the value and uses inside of a partition have none") {
  for_each_seed([](Random& random) {
    const Problem problem = random_problem(random);
    const Partitioning actual = partitioning_of(problem);
    const Reference expected(problem);
    for_each_use(
        problem,
        [&](uint32_t use, NodeId, NodeId user) {
          CAPTURE(use);
          const uint32_t slot = actual.input_slots()[use];
          const auto crossing = expected.crossings.find(use);
          REQUIRE((slot == kLocal) == (crossing == expected.crossings.end()));
          if (slot == kLocal) return;
          const PartitionId used = problem.assignment[user.value()];
          const Partition& partition = actual.partitions()[used.value()];
          REQUIRE(slot < partition.inputs.size());
          REQUIRE(partition.inputs[slot] == crossing->second);
        },
        [](NodeId) {});
  });
}
