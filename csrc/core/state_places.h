// Which modules hold the state of a dotted name: every call of a module shares its parameters.
#pragma once

#include <string>
#include <string_view>
#include <unordered_map>
#include <vector>

#include "core/module_tree.h"

namespace fxpress::core {

class StatePlaces {
 public:
  StatePlaces(ModuleTree& tree, StringPool& strings, ModuleId root);

  // The modules at `path` and at the call names of its parts: "a.b" is also "a@1.b" and "a.b@2".
  // A missing module is made. The tree may change only through this object meanwhile.
  const std::vector<ModuleId>& modules_at(std::string_view path);

 private:
  const std::vector<ModuleId>& calls_of(ModuleId parent, StringId name);

  ModuleTree& tree_;
  StringPool& strings_;
  std::unordered_map<std::string, std::vector<ModuleId>> known_;  // path -> modules
  // Table of children -> name without call -> children of that name.
  std::unordered_map<uint32_t, std::unordered_map<uint32_t, std::vector<ModuleId>>> calls_;
};

}  // namespace fxpress::core
