// Defines Graph: the nodes of an fx graph as arrays of integers, in graph order.
//
// The inputs of node i are inputs[input_begin[i] .. input_begin[i + 1]). fx::InputOrder defines
// their order. With InputOrder::kArguments, a function that visits the arguments of a node in the
// order of torch.fx.map_arg reads the ids of the inputs one after the other, without lookups.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "core/ids.h"

namespace fxpress::core {

enum class Op : uint8_t {
  kPlaceholder,
  kGetAttr,
  kCallFunction,
  kCallMethod,
  kCallModule,
  kOutput
};

struct Graph {
  std::vector<Op> ops;                   // index: node
  std::vector<ObjectId> targets;         // index: node; a function or string, by identity
  std::vector<uint32_t> input_begin{0};  // index: node; ends with the size of `inputs`
  std::vector<NodeId> inputs;            // the inputs of node 0, then of node 1, ...
  std::vector<uint32_t> user_begin;      // like input_begin; empty before link_users()
  std::vector<NodeId> users;             // the users of node 0, then of node 1, ...; in graph order

  size_t size() const { return ops.size(); }

  std::span<const NodeId> inputs_of(NodeId node) const { return range(inputs, input_begin, node); }
  std::span<const NodeId> users_of(NodeId node) const { return range(users, user_begin, node); }

  // Fills user_begin and users from the inputs.
  void link_users() {
    const size_t n = size();
    std::vector<uint32_t> last_user(n, 0xffffffffu);
    user_begin.assign(n + 1, 0);
    for_each_use(last_user, [&](NodeId def, uint32_t) { ++user_begin[def.value() + 1]; });
    for (size_t i = 0; i < n; ++i) user_begin[i + 1] += user_begin[i];
    users.assign(user_begin[n], NodeId());
    std::vector<uint32_t> next(user_begin.begin(), user_begin.end() - 1);
    last_user.assign(n, 0xffffffffu);
    for_each_use(last_user,
                 [&](NodeId def, uint32_t user) { users[next[def.value()]++] = NodeId(user); });
  }

 private:
  static std::span<const NodeId> range(const std::vector<NodeId>& items,
                                       const std::vector<uint32_t>& begin, NodeId node) {
    return {items.data() + begin[node.value()], begin[node.value() + 1] - begin[node.value()]};
  }

  // Calls use(def, user) once for each pair of a node `def` and one of its users, ordered by user.
  template <class F>
  void for_each_use(std::vector<uint32_t>& last_user, F use) const {
    for (uint32_t user = 0; user < size(); ++user) {
      for (NodeId def : inputs_of(NodeId(user))) {
        if (last_user[def.value()] == user) continue;
        last_user[def.value()] = user;
        use(def, user);
      }
    }
  }
};

// The nodes whose values may be freed after node i has run are dead[begin[i] .. begin[i + 1]).
struct LastUses {
  std::vector<uint32_t> begin;  // index: node; ends with the size of `dead`
  std::vector<NodeId> dead;     // in the order of the inputs of node i
};

// Computes LastUses. A node without users is not listed.
inline LastUses last_uses(const Graph& graph) {
  const size_t n = graph.size();
  std::vector<uint32_t> last_user(n, 0xffffffffu);
  for (uint32_t user = 0; user < n; ++user) {
    for (NodeId def : graph.inputs_of(NodeId(user))) last_user[def.value()] = user;
  }
  LastUses result;
  result.begin.reserve(n + 1);
  result.begin.push_back(0);
  for (uint32_t user = 0; user < n; ++user) {
    for (NodeId def : graph.inputs_of(NodeId(user))) {
      if (last_user[def.value()] != user) continue;
      result.dead.push_back(def);
      last_user[def.value()] = 0xffffffffu;  // a repeated input is listed once
    }
    result.begin.push_back(static_cast<uint32_t>(result.dead.size()));
  }
  return result;
}

}  // namespace fxpress::core
