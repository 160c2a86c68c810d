#include "core/module_tree.h"

#include <algorithm>
#include <unordered_set>

namespace fxpress::core {

std::string_view without_call(std::string_view name) {
  return name.substr(0, name.find('@'));
}

bool is_call_of(std::string_view name, std::string_view base) {
  if (!name.starts_with(base)) return false;
  name.remove_prefix(base.size());
  if (name.empty()) return true;
  if (name.front() != '@' || name.size() == 1) return false;
  return std::all_of(name.begin() + 1, name.end(), [](char c) { return c >= '0' && c <= '9'; });
}

bool is_below(std::string_view path, std::string_view prefix) {
  if (prefix.empty()) return !path.empty();
  return path.size() > prefix.size() + 1 && path.starts_with(prefix) && path[prefix.size()] == '.';
}

std::string without_calls(std::string_view path) {
  std::string result;
  result.reserve(path.size());
  bool in_call = false;
  for (char c : path) {
    if (c == '@') in_call = true;
    if (c == '.') in_call = false;
    if (!in_call) result.push_back(c);
  }
  return result;
}

ModuleId ModuleTree::add() {
  table_of_.push_back(static_cast<uint32_t>(tables_.size()));
  tables_.emplace_back();
  return ModuleId(table_of_.size() - 1);
}

ModuleId ModuleTree::child(ModuleId module, StringId name) const {
  const Table& table = tables_[table_of(module)];
  const auto it = table.positions.find(name.value());
  return it == table.positions.end() ? ModuleId() : table.items[it->second].second;
}

void ModuleTree::set_child(ModuleId module, StringId name, ModuleId child) {
  Table& table = tables_[table_of(module)];
  const auto [it, added] =
      table.positions.emplace(name.value(), static_cast<uint32_t>(table.items.size()));
  if (added) {
    table.items.emplace_back(name, child);
  } else {
    table.items[it->second].second = child;
  }
}

void ModuleTree::remove_child(ModuleId module, StringId name) {
  Table& table = tables_[table_of(module)];
  const auto it = table.positions.find(name.value());
  if (it == table.positions.end()) return;
  table.items[it->second].second = ModuleId();
  table.positions.erase(it);
  if (table.items.size() > 2 * table.positions.size() + 8) compact(table);
}

void ModuleTree::compact(Table& table) {
  std::erase_if(table.items, [](const auto& item) { return !item.second.valid(); });
  for (uint32_t i = 0; i < table.items.size(); ++i) {
    table.positions[table.items[i].first.value()] = i;
  }
}

ModuleTree::Children ModuleTree::children(ModuleId module) const {
  Children result;
  for (const auto& item : tables_[table_of(module)].items) {
    if (item.second.valid()) result.push_back(item);
  }
  return result;
}

void ModuleTree::share_children(ModuleId module, ModuleId other) {
  table_of_[module.value()] = table_of(other);
}

ModuleId ModuleTree::find(ModuleId from, std::string_view path) const {
  size_t start = 0;
  while (from.valid() && start <= path.size()) {
    const size_t dot = std::min(path.find('.', start), path.size());
    from = child(from, strings_.intern(path.substr(start, dot - start)));
    start = dot + 1;
  }
  return from;
}

void ModuleTree::sort_children(ModuleId root, const Rank& rank) {
  struct Visit {
    ModuleId module;   // whose children are sorted
    std::string path;  // of the module, without call numbers, with a dot at the end
  };
  std::vector<Visit> visits{{root, ""}};
  std::unordered_set<std::string> done;  // "table:path": calls of one module share a table
  while (!visits.empty()) {
    const Visit visit = std::move(visits.back());
    visits.pop_back();
    Table& table = tables_[table_of(visit.module)];
    compact(table);
    if (!done.insert(std::to_string(table_of(visit.module)) + ':' + visit.path).second) continue;
    std::vector<std::pair<size_t, uint32_t>> order;
    for (uint32_t i = 0; i < table.items.size(); ++i) {
      const std::string call_path = visit.path + std::string(strings_.text(table.items[i].first));
      order.emplace_back(rank(std::string(without_call(call_path)), call_path), i);
    }
    std::stable_sort(order.begin(), order.end(),
                     [](const auto& a, const auto& b) { return a.first < b.first; });
    Children sorted;
    for (const auto& [ignored, i] : order) sorted.push_back(table.items[i]);
    table.items = std::move(sorted);
    compact(table);
    for (auto it = table.items.rbegin(); it != table.items.rend(); ++it) {
      const std::string_view name = strings_.text(it->first);
      visits.push_back({it->second, visit.path + std::string(without_call(name)) + '.'});
    }
  }
}

}  // namespace fxpress::core
