#include "unflatten/plan/state_places.h"

#include <algorithm>

namespace fxpress::unflatten {

using core::ModuleId;
using core::StringId;
using core::StringPool;

StatePlaces::StatePlaces(ModuleTree& tree, StringPool& strings, ModuleId root)
    : tree_(tree), strings_(strings) {
  known_.push_back({root});
}

const std::vector<ModuleId>& StatePlaces::calls_of(ModuleId parent, StringId name) {
  const uint32_t table = tree_.table_of(parent);
  const auto calls_named = [&](StringId base) -> std::vector<ModuleId>& {
    const auto [place, added] = calls_below_.insert(uint64_t{table} << 32 | base.value(),
                                                    static_cast<uint32_t>(calls_.size()));
    return added ? calls_.emplace_back() : calls_[place];
  };
  if (grouped_.insert(table, 0).added) {
    for (const auto& [child_name, child] : tree_.children(parent)) {
      const std::string_view text = strings_.text(child_name);
      const std::string_view base = without_call(text);
      const bool is_call = base.size() < text.size() && is_call_of(text, base);
      calls_named(is_call ? strings_.intern(base) : child_name).push_back(child);
    }
  }
  std::vector<ModuleId>& calls = calls_named(name);
  if (!tree_.child(parent, name).valid()) {
    const ModuleId made = tree_.add();
    tree_.set_child(parent, name, made);
    calls.push_back(made);
  }
  return calls;
}

const std::vector<ModuleId>& StatePlaces::modules_at(std::string_view path) {
  uint32_t at = 0;
  for (size_t start = 0; !path.empty() && start <= path.size();) {
    const size_t end = std::min(path.find('.', start), path.size());
    const StringId name = strings_.intern(path.substr(start, end - start));
    const auto [place, added] =
        below_.insert(uint64_t{at} << 32 | name.value(), static_cast<uint32_t>(known_.size()));
    if (added) {
      std::vector<ModuleId>& modules = known_.emplace_back();
      for (ModuleId parent : known_[at]) {
        for (ModuleId module : calls_of(parent, name)) {
          if (std::find(modules.begin(), modules.end(), module) == modules.end()) {
            modules.push_back(module);
          }
        }
      }
    }
    at = place;
    start = end + 1;
  }
  return known_[at];
}

}  // namespace fxpress::unflatten
