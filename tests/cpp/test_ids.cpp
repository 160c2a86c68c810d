#include <doctest/doctest.h>

#include <cstddef>
#include <cstdint>
#include <type_traits>

#include "core/ids.h"

using namespace fxpress::core;

TEST_CASE("ids: no kind of id becomes another, and no integer becomes an id unasked") {
  static_assert(!std::is_constructible_v<NodeId, PartitionId>);
  static_assert(!std::is_constructible_v<StringId, ObjectId>);
  static_assert(!std::is_convertible_v<uint32_t, NodeId>);
  static_assert(!std::is_convertible_v<size_t, NodeId>);
  static_assert(!std::is_convertible_v<NodeId, uint32_t>);
  static_assert(sizeof(NodeId) == sizeof(uint32_t), "arrays of ids are arrays of integers");
}

TEST_CASE("ids: a default id is invalid and any position is valid") {
  CHECK_FALSE(NodeId().valid());
  CHECK(NodeId(uint32_t{0}).valid());
  CHECK(NodeId(uint32_t{0xfffffffe}).valid());
}

TEST_CASE("ids: value and order equal the integer's") {
  CHECK(NodeId(uint32_t{7}).value() == 7);
  CHECK(NodeId(size_t{7}) == NodeId(uint32_t{7}));
  CHECK(NodeId(uint32_t{7}) != NodeId(uint32_t{8}));
  CHECK(NodeId(uint32_t{7}) < NodeId(uint32_t{8}));
  CHECK(NodeId(uint32_t{7}) < NodeId());
}
