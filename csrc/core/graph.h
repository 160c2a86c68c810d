// Defines the flat graph: the nodes of an fx graph as arrays of integers in graph order.
//
// Node i has ops[i], targets[i] and inputs[input_begin[i] .. input_begin[i + 1]): every node that
// its args, then its kwargs, mention, with repetitions, in the order in which fx's map_arg visits
// them. A walk over the arguments of a node in that order can therefore consume the inputs one by
// one, without a lookup.
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
  std::vector<Op> ops;                   // by node
  std::vector<ObjectId> targets;         // by node; functions and strings, by identity
  std::vector<uint32_t> input_begin{0};  // by node, one more at the end
  std::vector<NodeId> inputs;            // all inputs of all nodes
  std::vector<uint32_t> user_begin;      // by node, one more at the end; empty until link_users()
  std::vector<NodeId> users;             // all users of all nodes, each user once, in graph order

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

  // Calls use(def, user) once for each node and each of its users, in the graph order of the users.
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

// The values whose last use is node i: dead[begin[i] .. begin[i + 1]) may be freed after it.
struct LastUses {
  std::vector<uint32_t> begin;  // by node, one more at the end
  std::vector<NodeId> dead;     // in the order of the node's inputs
};

// Lists each value at its last user in graph order; omits values without users.
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
      last_user[def.value()] = 0xffffffffu;  // listed once, even if the node mentions it again
    }
    result.begin.push_back(static_cast<uint32_t>(result.dead.size()));
  }
  return result;
}

}  // namespace fxpress::core
