#include "unflatten/plan/module_calls.h"

#include "unflatten/plan/module_tree.h"

namespace fxpress::unflatten {

using core::StringPool;

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

}  // namespace fxpress::unflatten
