// Runs the steps after outlining, which move state into modules, and turn calls into modules.
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

// Moves state from the arguments of module calls into the modules: placeholders for parameters,
// buffers and constants become get_attr nodes of the module that owns the state. `targets`: by flat
// node, the dotted names of the state that the placeholder passes; empty for other nodes. A module
// owns the state if a target is below the module's path. The first target below the path names the
// state. Without one, an outer module owns the state.
void lower_state(Outline& outline, ModuleTree& tree, StringPool& strings,
                 const std::vector<std::vector<StringId>>& targets);

// Finds the modules that hold the state of a dotted name. Each call of a module is a separate
// module, and all calls share parameters.
class StatePlaces {
 public:
  // A child "a@1" is a call of "a", unless a name in `names` is below "a@1".
  StatePlaces(ModuleTree& tree, StringPool& strings, ModuleId root,
              std::span<const std::string_view> names = {});

  // The modules at `path` and at the call names of its parts: "a.b" is also "a@1.b" and "a.b@2".
  // Adds missing modules. Nothing else may change the tree while this object is in use.
  const std::vector<ModuleId>& modules_at(std::string_view path);

 private:
  using Modules = std::deque<std::vector<ModuleId>>;  // a deque keeps references valid

  const std::vector<ModuleId>& calls_of(ModuleId parent, std::string_view path, StringId name);

  ModuleTree& tree_;
  StringPool& strings_;
  FlatMap own_;          // paths that end with a call name and have state
  Modules known_;        // by path; the first is the root's
  FlatMap below_;        // (index of a path in known_, name) -> index of the path of that child
  Modules calls_;        // children that are calls of one module
  FlatMap calls_below_;  // (table of children, name without call) -> index in calls_
  FlatMap grouped_;      // tables whose children are in calls_
};

// ---- calls ----

using SameGraph = std::function<bool(FrameId, FrameId)>;

// Call name of a merged call -> the call name that replaces it.
using Redirects = std::unordered_map<uint32_t, StringId>;

// Merges calls of one module object with equal graphs into one module. If the calls have the same
// path, the later call runs the module of the earlier call. Otherwise the later path becomes a
// second name of that module.
Redirects merge_calls(Outline& outline, ModuleTree& tree, StringPool& strings,
                      const SameGraph& same_graph);

// Merges each displaced call with the call that displaced it if their graphs are equal. Other
// displaced calls keep their numbered names.
void merge_displaced(Outline& outline, ModuleTree& tree, StringPool& strings,
                     const SameGraph& same_graph);

// A module that stands for calls with different graphs: each call runs the next of `calls`.
struct Dispatcher {
  ModuleId module;              // its id in the tree
  StringId path;                // path of the module
  std::vector<ModuleId> calls;  // the modules of the calls, in order; may repeat
};

// Creates a dispatcher for each module with several preserved calls; these calls then lose their
// numbers. `preserved`: the call names that have a signature.
std::vector<Dispatcher> dispatch_calls(Outline& outline, ModuleTree& tree, StringPool& strings,
                                       std::span<const StringId> preserved,
                                       const Redirects& redirects);

// Sorts modules by position in `paths`, and modules that are not in `paths` by first appearance.
// Adds empty modules for paths without a module.
void arrange_modules(Outline& outline, ModuleTree& tree, StringPool& strings,
                     std::span<const StringId> paths);

}  // namespace fxpress::unflatten
