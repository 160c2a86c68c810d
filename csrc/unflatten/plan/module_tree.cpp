#include "unflatten/plan/module_tree.h"

#include <algorithm>
#include <utility>

#include "core/characters.h"

namespace fxpress::unflatten {

std::string_view without_call(std::string_view name) {
  return name.substr(0, name.find('@'));
}

bool is_call_of(std::string_view name, std::string_view base) {
  if (!name.starts_with(base)) return false;
  name.remove_prefix(base.size());
  if (name.empty()) return true;
  if (name.front() != '@' || name.size() == 1) return false;
  return std::all_of(name.begin() + 1, name.end(), core::is_digit);
}

bool is_below(std::string_view path, std::string_view prefix) {
  if (prefix.empty()) return !path.empty();
  return path.size() > prefix.size() + 1 && path.starts_with(prefix) && path[prefix.size()] == '.';
}

std::string_view relative(std::string_view path, std::string_view prefix) {
  return prefix.empty() ? path : path.substr(prefix.size() + 1);
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

StringId joined(StringPool& strings, StringId path, std::string_view name) {
  const std::string_view prefix = strings.text(path);
  if (prefix.empty()) return strings.intern(name);
  std::string result;
  result.reserve(prefix.size() + 1 + name.size());
  result.append(prefix).append(1, '.').append(name);
  return strings.intern(result);
}

ModuleId ModuleTree::add() {
  table_of_.push_back(static_cast<uint32_t>(tables_.size()));
  tables_.emplace_back();
  return ModuleId(table_of_.size() - 1);
}

ModuleId ModuleTree::child(ModuleId module, StringId name) const {
  const uint32_t table = table_of(module);
  const uint32_t place = position(table, name);
  return place < kRemoved ? tables_[table].items[place].second : ModuleId();
}

void ModuleTree::set_child(ModuleId module, StringId name, ModuleId child) {
  const uint32_t table = table_of(module);
  std::vector<Child>& items = tables_[table].items;
  const uint32_t place = position(table, name);
  if (place < kRemoved) {
    items[place].second = child;
    return;
  }
  positions_.assign(key(table, name), static_cast<uint32_t>(items.size()));
  items.emplace_back(name, child);
}

void ModuleTree::remove_child(ModuleId module, StringId name) {
  const uint32_t id = table_of(module);
  const uint32_t place = position(id, name);
  if (place >= kRemoved) return;
  ChildTable& table = tables_[id];
  table.items[place].second = ModuleId();
  ++table.removed;
  positions_.assign(key(id, name), kRemoved);
  const size_t left = table.items.size() - table.removed;
  if (table.removed > left + 8) compact(id);
}

void ModuleTree::number(uint32_t table) {
  const std::vector<Child>& items = tables_[table].items;
  for (uint32_t i = 0; i < items.size(); ++i) positions_.assign(key(table, items[i].first), i);
}

void ModuleTree::compact(uint32_t table) {
  if (std::exchange(tables_[table].removed, 0) == 0) return;
  std::erase_if(tables_[table].items, [](const Child& item) { return !item.second.valid(); });
  number(table);
}

std::span<const ModuleTree::Child> ModuleTree::children(ModuleId module) {
  compact(table_of(module));
  return tables_[table_of(module)].items;
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
    ModuleId module;  // the module whose children are sorted
    StringId path;    // path of the module, without call numbers
  };
  struct Ranked {
    size_t rank;
    Child child;
    StringId path;  // path of the child, without call numbers
  };
  std::vector<Visit> visits{{root, strings_.intern("")}};
  FlatMap done;  // visited pairs (table, path); calls of one module share a table
  std::vector<Ranked> order;
  while (!visits.empty()) {
    const Visit visit = visits.back();
    visits.pop_back();
    const uint32_t table = table_of(visit.module);
    if (!done.insert(key(table, visit.path), 0).added) continue;
    compact(table);
    std::vector<Child>& items = tables_[table].items;
    order.clear();
    for (const Child& child : items) {
      const std::string_view name = strings_.text(child.first);
      const std::string_view base = without_call(name);
      const StringId call_path = joined(strings_, visit.path, name);
      const StringId path =
          base.size() == name.size() ? call_path : joined(strings_, visit.path, base);
      order.push_back({rank(path, call_path), child, path});
    }
    const auto before = [](const Ranked& a, const Ranked& b) { return a.rank < b.rank; };
    if (!std::is_sorted(order.begin(), order.end(), before)) {
      std::stable_sort(order.begin(), order.end(), before);
      for (size_t i = 0; i < order.size(); ++i) items[i] = order[i].child;
      number(table);
    }
    for (auto it = order.rbegin(); it != order.rend(); ++it) {
      visits.push_back({it->child.second, it->path});
    }
  }
}

}  // namespace fxpress::unflatten
