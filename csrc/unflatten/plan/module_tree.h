// Defines ModuleTree, a tree of nn.Modules that will be created. Integers represent modules and
// names. The calls of one module are separate modules that share a table of children.
#pragma once

#include <functional>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "core/flat_map.h"
#include "core/ids.h"
#include "core/string_pool.h"

namespace fxpress::unflatten {

using core::FlatMap;
using core::ModuleId;
using core::StringId;
using core::StringPool;

// Returns a call name without the number of the call: "a.b" for "a.b@2".
std::string_view without_call(std::string_view name);

// Whether `name` is `base` or "base@<digits>".
bool is_call_of(std::string_view name, std::string_view base);

// Whether `path` is strictly below `prefix`, part by part. All paths except "" are below "".
bool is_below(std::string_view path, std::string_view prefix);

// Returns `path` without its ancestor `prefix` and the dot after it.
std::string_view relative(std::string_view path, std::string_view prefix);

// Returns a dotted path without call numbers: "a.b" for "a@1.b@2".
std::string without_calls(std::string_view path);

StringId joined(StringPool& strings, StringId path, std::string_view name);

class ModuleTree {
 public:
  using Child = std::pair<StringId, ModuleId>;

  explicit ModuleTree(StringPool& strings) : strings_(strings) {}

  ModuleId add();
  size_t size() const { return table_of_.size(); }

  // Returns the children of a module, in order. Setting or removing a child invalidates the span.
  std::span<const Child> children(ModuleId module);
  ModuleId child(ModuleId module, StringId name) const;

  // Sets the child with a name. A new name comes last; an existing name keeps its position.
  void set_child(ModuleId module, StringId name, ModuleId child);
  void remove_child(ModuleId module, StringId name);

  void share_children(ModuleId module, ModuleId other);

  // Returns the index of the module's table of children, which several modules may share.
  uint32_t table_of(ModuleId module) const { return table_of_[module.value()]; }

  // Returns the module at a dotted path below `from`, or an invalid id.
  ModuleId find(ModuleId from, std::string_view path) const;

  // Returns the parent module and the last part of `path`. make(prefix) creates a missing module.
  template <class Make>
  std::pair<ModuleId, StringId> parent_of(ModuleId from, std::string_view path, Make make) {
    size_t start = 0;
    for (size_t dot; (dot = path.find('.', start)) != std::string_view::npos; start = dot + 1) {
      const StringId name = strings_.intern(path.substr(start, dot - start));
      ModuleId next = child(from, name);
      if (!next.valid()) {
        next = make(path.substr(0, dot));
        set_child(from, name, next);
      }
      from = next;
    }
    return {from, strings_.intern(path.substr(start))};
  }

  // Sorts the children of every module below `root` stably by rank(path, call_path). path: the path
  // of a child from `root` without call numbers. call_path: `path` with the child's call number.
  using Rank = std::function<size_t(StringId path, StringId call_path)>;
  void sort_children(ModuleId root, const Rank& rank);

 private:
  struct ChildTable {
    std::vector<Child> items;  // in order; removed children are invalid
    size_t removed = 0;        // number of invalid items
  };
  static constexpr uint32_t kRemoved = FlatMap::kAbsent - 1;

  static uint64_t key(uint32_t table, StringId name) {
    return uint64_t{table} << 32 | name.value();
  }
  // Returns the index of a child in its table; kRemoved or kAbsent if no child has the name.
  uint32_t position(uint32_t table, StringId name) const {
    return positions_.find(key(table, name));
  }
  void number(uint32_t table);
  void compact(uint32_t table);

  StringPool& strings_;             // owns the names
  std::vector<uint32_t> table_of_;  // by module: index in tables_
  std::vector<ChildTable> tables_;  // tables of children
  FlatMap positions_;               // see position()
};

}  // namespace fxpress::unflatten
