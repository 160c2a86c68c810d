// Stores stacks of module calls: the calls, outermost first, in which a node was traced.
#pragma once

#include <cstdint>
#include <functional>
#include <span>
#include <vector>

#include "core/graph.h"
#include "core/ids.h"
#include "core/string_pool.h"
#include "core/text_hash.h"

namespace fxpress::unflatten {

using core::Graph;
using core::Id;
using core::NodeId;
using core::StringId;
using core::StringPool;

// One call of a module.
struct ModuleCall {
  StringId path;      // dotted name of the module
  uint32_t type = 0;  // number of the module's class; kNoType: unknown
  uint32_t call = 0;  // number of the call of the module, from 0
  StringId key;       // identifies the module object, which may have several paths

  static constexpr uint32_t kNoType = 0xffffffffu;
  bool same_call(const ModuleCall& other) const {
    return path == other.path && type == other.type && call == other.call;
  }
};

using StackId = Id<struct StackTag>;

// Stores stacks of module calls by id; equal stacks have one id.
class ModuleCallStacks {
 public:
  StackId intern(std::span<const ModuleCall> stack);
  std::span<const ModuleCall> operator[](StackId id) const { return stacks_[id.value()]; }
  size_t size() const { return stacks_.size(); }

  // Returns the number of leading calls that are nested: each path is below the previous path.
  static size_t valid_depth(std::span<const ModuleCall> stack, const StringPool& strings);

 private:
  std::vector<std::vector<ModuleCall>> stacks_;  // stacks by id
  core::TextMap<uint32_t> ids_;                  // bytes of a stack -> id
};

// Gives stacks to nodes without a stack, such as nodes that a pass added. If all users of such a
// node were traced in one call of one module, the node gets their stack. is_remade(node): whether
// each graph that uses the node gets a separate copy of it, so that the node needs no stack.
void adopt_stacks(const Graph& graph, std::vector<StackId>& stacks,
                  const std::function<bool(NodeId)>& is_remade);

}  // namespace fxpress::unflatten
