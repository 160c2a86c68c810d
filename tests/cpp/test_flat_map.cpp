#include <doctest/doctest.h>

#include <cstdint>
#include <unordered_map>
#include <vector>

#include "core/flat_map.h"
#include "support.h"

using namespace fxpress::core;
using fxpress::core::testing::Random;

TEST_CASE("flat_map: an empty map finds nothing") {
  const FlatMap map;
  CHECK(map.size() == 0);
  CHECK(map.find(0) == FlatMap::kAbsent);
  CHECK(map.find(~uint64_t{0}) == FlatMap::kAbsent);
}

TEST_CASE("flat_map: the first value stored under a key stays") {
  FlatMap map;
  const auto first = map.insert(42, 1);
  CHECK(first.value == 1);
  CHECK(first.added);
  const auto second = map.insert(42, 2);
  CHECK(second.value == 1);
  CHECK_FALSE(second.added);
  CHECK(map.find(42) == 1);
  CHECK(map.size() == 1);
}

TEST_CASE("flat_map: all 64-bit keys are distinct") {
  // Keys that differ in one half only, and the ends of the range.
  const std::vector<uint64_t> keys = {0,
                                      1,
                                      uint64_t{1} << 32,
                                      uint64_t{1} << 63,
                                      0xffffffffu,
                                      ~uint64_t{0},
                                      (uint64_t{1} << 32) | 1};
  FlatMap map;
  for (uint32_t i = 0; i < keys.size(); ++i) CHECK(map.insert(keys[i], i).added);
  for (uint32_t i = 0; i < keys.size(); ++i) CHECK(map.find(keys[i]) == i);
}

TEST_CASE("flat_map: growth loses nothing, whatever the keys have in common") {
  for (const uint64_t stride :
       {uint64_t{1}, uint64_t{16}, uint64_t{1} << 32, (uint64_t{1} << 32) + 1}) {
    CAPTURE(stride);
    FlatMap map(10);
    for (uint32_t i = 0; i < 5000; ++i) REQUIRE(map.insert(i * stride, i).added);
    CHECK(map.size() == 5000);
    for (uint32_t i = 0; i < 5000; ++i) REQUIRE(map.find(i * stride) == i);
    CHECK(map.find(5000 * stride) == FlatMap::kAbsent);
  }
}

TEST_CASE("flat_map: assign replaces a value and adds a missing one") {
  FlatMap map;
  for (uint64_t key = 0; key < 100; ++key) map.assign(key, 1);
  for (uint64_t key = 0; key < 200; ++key) map.assign(key, static_cast<uint32_t>(key));
  CHECK(map.size() == 200);
  for (uint64_t key = 0; key < 200; ++key) CHECK(map.find(key) == key);
}

TEST_CASE("flat_map: behaves as a standard map that never overwrites") {
  Random random(1);
  FlatMap map;
  std::unordered_map<uint64_t, uint32_t> expected;
  for (uint32_t step = 0; step < 20000; ++step) {
    // Few distinct keys, so that about half of the insertions meet one that is there.
    const uint64_t key = (uint64_t{random.below(100)} << 32) | random.below(100);
    const auto [value, added] = map.insert(key, step);
    const auto [place, fresh] = expected.try_emplace(key, step);
    REQUIRE(added == fresh);
    REQUIRE(value == place->second);
    REQUIRE(map.size() == expected.size());
  }
  for (const auto& [key, value] : expected) REQUIRE(map.find(key) == value);
}
