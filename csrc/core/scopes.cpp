#include "core/scopes.h"

#include "core/module_tree.h"

namespace fxpress::core {

StackId ScopeStacks::intern(std::span<const Scope> stack) {
  std::string bytes;
  bytes.reserve(stack.size() * 16);
  const auto append = [&](uint32_t number) {
    bytes.append(reinterpret_cast<const char*>(&number), sizeof(number));
  };
  for (const Scope& scope : stack) {
    append(scope.path.value());
    append(scope.type);
    append(scope.call);
    append(scope.key.value());
  }
  const auto [it, added] = ids_.emplace(std::move(bytes), static_cast<uint32_t>(stacks_.size()));
  if (added) stacks_.emplace_back(stack.begin(), stack.end());
  return StackId(it->second);
}

size_t ScopeStacks::valid_depth(std::span<const Scope> stack, const StringPool& strings) {
  size_t depth = stack.empty() ? 0 : 1;
  while (depth < stack.size() && is_below(without_calls(strings.text(stack[depth].path)),
                                          without_calls(strings.text(stack[depth - 1].path)))) {
    ++depth;
  }
  return depth;
}

}  // namespace fxpress::core
