#include "unflatten/plan/module_calls.h"

#include "unflatten/plan/module_tree.h"

namespace fxpress::unflatten {

using core::Op;

StackId ModuleCallStacks::intern(std::span<const ModuleCall> stack) {
  std::string bytes;
  bytes.reserve(stack.size() * 16);
  const auto append = [&](uint32_t number) {
    bytes.append(reinterpret_cast<const char*>(&number), sizeof(number));
  };
  for (const ModuleCall& scope : stack) {
    append(scope.path.value());
    append(scope.type);
    append(scope.call);
    append(scope.key.value());
  }
  const auto [it, added] = ids_.emplace(std::move(bytes), static_cast<uint32_t>(stacks_.size()));
  if (added) stacks_.emplace_back(stack.begin(), stack.end());
  return StackId(it->second);
}

size_t ModuleCallStacks::valid_depth(std::span<const ModuleCall> stack, const StringPool& strings) {
  size_t depth = stack.empty() ? 0 : 1;
  while (depth < stack.size() && is_below(without_calls(strings.text(stack[depth].path)),
                                          without_calls(strings.text(stack[depth - 1].path)))) {
    ++depth;
  }
  return depth;
}

namespace {

// The module calls in which the users of a value were traced: none, one or several.
struct Users {
  enum class Where : uint8_t { kNowhere, kInOne, kInSeveral };

  void add(StackId other) {
    if (where == Where::kInOne && stack != other) where = Where::kInSeveral;
    if (where == Where::kNowhere) {
      where = Where::kInOne;
      stack = other;
    }
  }
  void add(const Users& others) {
    if (others.where == Where::kInOne) add(others.stack);
    if (others.where == Where::kInSeveral) where = Where::kInSeveral;
  }

  Where where = Where::kNowhere;
  StackId stack;  // kInOne: stack of the users
};

bool is_in_body(Op op) {
  return op != Op::kPlaceholder && op != Op::kOutput;
}

}  // namespace

void adopt_stacks(const Graph& graph, std::vector<StackId>& stacks,
                  const std::function<bool(NodeId)>& is_remade) {
  const auto lacks_stack = [&](size_t node) {
    return is_in_body(graph.ops[node]) && !stacks[node].valid();
  };
  size_t first = 0;  // position of the first node without a stack
  while (first < graph.size() && !lacks_stack(first)) ++first;
  if (first == graph.size()) return;
  std::vector<Users> users(graph.size());
  for (size_t i = graph.size(); i-- > first;) {
    const NodeId node(i);
    Users& own = users[i];
    const bool passes_on = lacks_stack(i) && is_remade(node);
    if (lacks_stack(i) && !passes_on && own.where == Users::Where::kInOne) stacks[i] = own.stack;
    for (const NodeId input : graph.inputs_of(node)) {
      Users& known = users[input.value()];
      if (passes_on) {
        known.add(own);
      } else if (stacks[i].valid()) {
        known.add(stacks[i]);
      } else {
        known.where = Users::Where::kInSeveral;  // the user is an output, or has no stack
      }
    }
  }
}

}  // namespace fxpress::unflatten
