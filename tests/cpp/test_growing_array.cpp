#include <doctest/doctest.h>

#include <array>
#include <new>
#include <utility>

#include "core/growing_array.h"

using namespace fxpress::core;

TEST_CASE("a growing array keeps what is appended") {
  GrowingArray<int> array;
  CHECK(array.size() == 0);
  for (int i = 0; i < 1000; ++i) array.append(i, 2);
  const std::array<int, 3> more = {-1, -2, -3};
  array.append(more);
  array.append(std::span<const int>());
  REQUIRE(array.size() == 2003);
  for (size_t i = 0; i < 2000; ++i) CHECK(array[i] == static_cast<int>(i / 2));
  CHECK(array[2002] == -3);
  array[0] = 7;
  CHECK(array.items()[0] == 7);
}

TEST_CASE("copies of a growing array are their own, and moves leave nothing behind") {
  GrowingArray<int> first;
  first.append(5, 10);
  GrowingArray<int> copy = first;
  copy[0] = 6;
  CHECK(first[0] == 5);
  const GrowingArray<int> moved = std::move(first);
  CHECK(moved.size() == 10);
  copy = moved;
  CHECK(copy[0] == 5);
  copy.reserve(100);
  CHECK(copy.size() == 10);
}

TEST_CASE("a growing array of an impossible size") {
  GrowingArray<int> array;
  CHECK_THROWS_AS(array.reserve(static_cast<size_t>(-1) / 2), std::bad_alloc);
}

TEST_CASE("a growing array of many megabytes") {
  GrowingArray<int> array;
  constexpr int kBlock = 1 << 18;
  for (int i = 0; i < 12; ++i) array.append(i, kBlock);  // 12 MiB
  REQUIRE(array.size() == 12 * size_t{kBlock});
  for (size_t i = 0; i < array.size(); i += 1021) CHECK(array[i] == static_cast<int>(i / kBlock));
}
