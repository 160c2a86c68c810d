#include "core/state_places.h"

#include <algorithm>

namespace fxpress::core {

StatePlaces::StatePlaces(ModuleTree& tree, StringPool& strings, ModuleId root)
    : tree_(tree), strings_(strings) {
  known_.emplace("", std::vector<ModuleId>{root});
}

const std::vector<ModuleId>& StatePlaces::calls_of(ModuleId parent, StringId name) {
  const auto [table, is_new] = calls_.try_emplace(tree_.table_of(parent));
  if (is_new) {
    for (const auto& [child_name, child] : tree_.children(parent)) {
      const std::string_view text = strings_.text(child_name);
      const std::string_view base = without_call(text);
      const StringId id = is_call_of(text, base) ? strings_.intern(base) : child_name;
      table->second[id.value()].push_back(child);
    }
  }
  std::vector<ModuleId>& calls = table->second[name.value()];
  if (!tree_.child(parent, name).valid()) {
    const ModuleId made = tree_.add();
    tree_.set_child(parent, name, made);
    calls.push_back(made);
  }
  return calls;
}

const std::vector<ModuleId>& StatePlaces::modules_at(std::string_view path) {
  // The longest known prefix, then part by part.
  std::string prefix(path);
  while (!known_.contains(prefix)) {
    const size_t dot = prefix.rfind('.');
    prefix.resize(dot == std::string::npos ? 0 : dot);
  }
  while (prefix.size() < path.size()) {
    const std::vector<ModuleId>& parents = known_.at(prefix);
    const size_t start = prefix.empty() ? 0 : prefix.size() + 1;
    const size_t end = std::min(path.find('.', start), path.size());
    const StringId name = strings_.intern(path.substr(start, end - start));
    std::vector<ModuleId> modules;
    for (ModuleId parent : parents) {
      for (ModuleId module : calls_of(parent, name)) {
        if (std::find(modules.begin(), modules.end(), module) == modules.end()) {
          modules.push_back(module);
        }
      }
    }
    prefix = std::string(path.substr(0, end));
    known_.emplace(prefix, std::move(modules));
  }
  return known_.at(prefix);
}

}  // namespace fxpress::core
