// Steps after outlining: modules get their state, and calls are arranged as modules.
#pragma once

#include <deque>
#include <functional>
#include <string_view>
#include <unordered_map>
#include <vector>

#include "core/flat_map.h"
#include "unflatten/plan/module_tree.h"
#include "unflatten/plan/outline.h"

namespace fxpress::unflatten {

using core::FlatMap;
using core::FrameId;
using core::ModuleId;
using core::StringId;
using core::StringPool;

// ---- state ----

// Moves state from the arguments of module calls into the modules: placeholders for parameters,
// buffers and constants become get_attr nodes of the module that has them. `targets`: by flat node,
// the dotted names under which the state of that placeholder is found; empty for everything else. A
// module takes the first target that lies below its own path; where none does, an outer module will
// have it.
void lower_state(Outline& outline, ModuleTree& tree, StringPool& strings,
                 const std::vector<std::vector<StringId>>& targets);

// Finds the modules that hold the state of a dotted name: every call of a module shares its
// parameters.
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

// ---- calls ----

using SameGraph = std::function<bool(FrameId, FrameId)>;

// Call names of merged calls -> the call names that took their place.
using Redirects = std::unordered_map<uint32_t, StringId>;

// Calls of one module object whose graphs are the same become one module: under the same path the
// later call calls the earlier module, under another path that path names the earlier module.
Redirects merge_calls(Outline& outline, ModuleTree& tree, StringPool& strings,
                      const SameGraph& same_graph);

// Calls that had to leave their place to a call of the same graph are merged with it. The others
// stay where they are.
void merge_displaced(Outline& outline, ModuleTree& tree, StringPool& strings,
                     const SameGraph& same_graph);

// A module whose calls differ, under one name: each call goes to the next of `calls`.
struct Dispatcher {
  ModuleId module;              // its place in the tree
  StringId path;                // of the module
  std::vector<ModuleId> calls;  // in order; may repeat
};

// `preserved`: the call names that have a signature. Calls of dispatched modules lose their number.
std::vector<Dispatcher> dispatch_calls(Outline& outline, ModuleTree& tree, StringPool& strings,
                                       std::span<const StringId> preserved,
                                       const Redirects& redirects);

// Modules in the order of `paths`, then of their first appearance; a path without a module gets an
// empty one.
void arrange_modules(Outline& outline, ModuleTree& tree, StringPool& strings,
                     std::span<const StringId> paths);

}  // namespace fxpress::unflatten
