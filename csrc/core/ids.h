// Defines types of integer ids, so that the compiler rejects a node id in place of a partition id.
#pragma once

#include <compare>
#include <cstddef>
#include <cstdint>

namespace fxpress::core {

template <class Tag>
class Id {
 public:
  constexpr Id() = default;
  constexpr explicit Id(uint32_t value) : value_(value) {}
  constexpr explicit Id(size_t value) : value_(static_cast<uint32_t>(value)) {}

  constexpr uint32_t value() const { return value_; }
  constexpr bool valid() const { return value_ != kNone; }
  constexpr auto operator<=>(const Id&) const = default;

 private:
  static constexpr uint32_t kNone = 0xffffffffu;
  uint32_t value_ = kNone;  // index of a node, string, ... in its array
};

using NodeId = Id<struct NodeTag>;            // a node of a Graph, numbered in graph order
using PartitionId = Id<struct PartitionTag>;  // a partition, numbered in order of first use
using StringId = Id<struct StringTag>;        // a string of a StringPool
using ObjectId = Id<struct ObjectTag>;        // an object in a table of the caller, by identity
using ModuleId = Id<struct ModuleTag>;        // a module of a ModuleTree
using FrameId = Id<struct FrameTag>;          // a call of a module, in order of calls; 0: the root
using PlannedId = Id<struct PlannedTag>;      // a node that unflatten plans, in creation order

}  // namespace fxpress::core
