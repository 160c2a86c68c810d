// Completes the plan that outline() makes: moves state into modules, merges calls, sorts modules.
#pragma once

#include <deque>
#include <functional>
#include <span>
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

// Replaces placeholders for state (parameters, buffers and constants) by get_attr nodes in the
// module that owns the state, so that calls do not pass state as arguments. targets: by node of the
// flat graph, the dotted names of the state if the node is a placeholder for state, else nothing. A
// module owns the state if one of these names is below the module's path. The first such name is
// the name of the attribute. If there is none, an outer module owns the state.
void lower_state(Outline& outline, ModuleTree& tree, StringPool& strings,
                 const std::vector<std::vector<StringId>>& targets);

// Finds the modules that get the state with a dotted name. There may be several, because each call
// of a module becomes a separate module, and all of these modules get the state.
class StatePlaces {
 public:
  // names: only the names of state that contain "@". A child "a@1" is a call of "a", unless one of
  // these names is below "a@1".
  StatePlaces(ModuleTree& tree, StringPool& strings, ModuleId root,
              std::span<const std::string_view> names = {});

  // Returns the modules whose path without call numbers is `path`, such as "a@1.b" for "a.b".
  // Adds missing modules. Nothing else may change the tree while this object is in use.
  const std::vector<ModuleId>& modules_at(std::string_view path);

 private:
  using Modules = std::deque<std::vector<ModuleId>>;  // a deque keeps references valid

  const std::vector<ModuleId>& calls_of(ModuleId parent, std::string_view path, StringId name);

  ModuleTree& tree_;
  StringPool& strings_;
  FlatMap own_;          // paths such as "a@1" that have state below them
  Modules known_;        // results of modules_at(); the first is for the root
  FlatMap below_;        // (index in known_, name of a child) -> index of the child in known_
  Modules calls_;        // lists of children that are calls of one module
  FlatMap calls_below_;  // (table of children, name without call) -> index in calls_
  FlatMap grouped_;      // tables of children that are in calls_
};

// ---- calls ----

using SameGraph = std::function<bool(FrameId, FrameId)>;

// Call name of a merged call -> the call name that replaces it.
using Redirects = std::unordered_map<uint32_t, StringId>;

// If calls of one module object have equal graphs, merges them into one module. If the calls have
// the same path, the later call runs the module of the earlier call. Otherwise the later path
// becomes a second name of that module.
Redirects merge_calls(Outline& outline, ModuleTree& tree, StringPool& strings,
                      const SameGraph& same_graph);

// Compares each call in Outline::displaced with the call that has taken its name. Merges the two
// calls if their graphs are equal. Otherwise both calls keep their names.
void merge_displaced(Outline& outline, ModuleTree& tree, StringPool& strings,
                     const SameGraph& same_graph);

// A module that represents several calls of one module: each time it is called, it runs the next
// module in `calls`.
struct Dispatcher {
  ModuleId module;              // its id in the tree
  StringId path;                // path of the module
  std::vector<ModuleId> calls;  // the modules of the calls, in order; may repeat
};

// Creates a dispatcher for each module with several calls whose signatures are preserved, and
// replaces their targets by paths without call numbers. preserved: names of the preserved calls.
std::vector<Dispatcher> dispatch_calls(Outline& outline, ModuleTree& tree, StringPool& strings,
                                       std::span<const StringId> preserved,
                                       const Redirects& redirects);

// Sorts modules by their position in `paths`. All other modules follow, by first appearance. Adds
// empty modules for paths without a module.
void arrange_modules(Outline& outline, ModuleTree& tree, StringPool& strings,
                     std::span<const StringId> paths);

}  // namespace fxpress::unflatten
