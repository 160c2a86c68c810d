// Shared by the tests: random numbers with a fixed seed, graphs, and readable failures.
#pragma once

#include <doctest/doctest.h>

#include <cstddef>
#include <cstdint>
#include <random>
#include <utility>
#include <vector>

#include "core/graph.h"
#include "core/ids.h"

namespace fxpress::core::testing {

// The same numbers on every platform: the distributions of <random> would not promise that.
class Random {
 public:
  explicit Random(uint32_t seed) : engine_(seed) {}

  uint32_t below(size_t bound) { return static_cast<uint32_t>(engine_() % bound); }
  bool percent(uint32_t chance) { return below(100) < chance; }

  template <class T>
  void shuffle(std::vector<T>& items) {
    for (size_t i = items.size(); i > 1; --i) std::swap(items[i - 1], items[below(i)]);
  }

 private:
  std::mt19937_64 engine_;  // its sequence is fixed by the standard
};

// A graph of calls in which node i has the inputs inputs[i].
inline Graph make_graph(const std::vector<std::vector<uint32_t>>& inputs) {
  Graph graph;
  graph.ops.assign(inputs.size(), Op::kCallFunction);
  graph.targets.assign(inputs.size(), ObjectId(uint32_t{0}));
  for (const auto& list : inputs) {
    for (uint32_t input : list) graph.inputs.emplace_back(input);
    graph.input_begin.push_back(static_cast<uint32_t>(graph.inputs.size()));
  }
  return graph;
}

// Some placeholders, then calls that mention up to four earlier nodes, repetitions included, then
// the output.
inline Graph random_graph(Random& random, uint32_t nodes) {
  const uint32_t placeholders = 1 + random.below(nodes / 3);
  std::vector<std::vector<uint32_t>> inputs(nodes);
  for (uint32_t i = placeholders; i < nodes; ++i) {
    for (uint32_t k = random.below(5); k > 0; --k) inputs[i].push_back(random.below(i));
  }
  Graph graph = make_graph(inputs);
  for (uint32_t i = 0; i < placeholders; ++i) graph.ops[i] = Op::kPlaceholder;
  graph.ops.back() = Op::kOutput;
  return graph;
}

template <class IdType>
std::vector<IdType> ids(const std::vector<uint32_t>& values) {
  return {values.begin(), values.end()};
}

// Runs test(random) with many seeds; a failure names the seed.
template <class Test>
void for_each_seed(Test test) {
  for (uint32_t seed = 0; seed < 200; ++seed) {
    CAPTURE(seed);
    Random random(seed);
    test(random);
  }
}

}  // namespace fxpress::core::testing

namespace doctest {

template <class Tag>
struct StringMaker<fxpress::core::Id<Tag>> {
  static String convert(const fxpress::core::Id<Tag>& id) {
    return id.valid() ? toString(id.value()) : String("none");
  }
};

template <class T>
struct StringMaker<std::vector<T>> {
  static String convert(const std::vector<T>& items) {
    String text = "[";
    for (const T& item : items) text += (text.size() > 1 ? ", " : "") + toString(item);
    return text + "]";
  }
};

}  // namespace doctest
