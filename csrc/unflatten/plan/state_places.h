// Finds the modules that hold the state of a dotted name: every call of a module shares its
// parameters.
#pragma once

#include <deque>
#include <string_view>
#include <vector>

#include "core/flat_map.h"
#include "unflatten/plan/module_tree.h"

namespace fxpress::unflatten {

using core::FlatMap;
using core::ModuleId;
using core::StringId;
using core::StringPool;

class StatePlaces {
 public:
  StatePlaces(ModuleTree& tree, StringPool& strings, ModuleId root);

  // The modules at `path` and at the call names of its parts: "a.b" is also "a@1.b" and "a.b@2".
  // A missing module is made. The tree may change only through this object meanwhile.
  const std::vector<ModuleId>& modules_at(std::string_view path);

 private:
  using Modules = std::deque<std::vector<ModuleId>>;  // keep their places

  const std::vector<ModuleId>& calls_of(ModuleId parent, StringId name);

  ModuleTree& tree_;
  StringPool& strings_;
  Modules known_;        // by path; the first is the root's
  FlatMap below_;        // (place of a path in known_, part) -> place of the path with that part
  Modules calls_;        // children that are calls of one module
  FlatMap calls_below_;  // (table of children, name without call) -> place in calls_
  FlatMap grouped_;      // tables whose children are in calls_
};

}  // namespace fxpress::unflatten
