#include "unflatten/plan/arrange.h"

#include <algorithm>
#include <charconv>

namespace fxpress::unflatten {

using core::FlatMap;
using core::FrameId;
using core::ModuleId;
using core::StringId;
using core::StringPool;

namespace {

// `path` as seen from the module at `base`, above it.
std::string_view relative(std::string_view path, std::string_view base) {
  return base.empty() ? path : path.substr(base.size() + 1);
}

std::pair<std::string_view, std::string_view> split_last(std::string_view path) {
  const size_t dot = path.rfind('.');
  if (dot == std::string_view::npos) return {{}, path};
  return {path.substr(0, dot), path.substr(dot + 1)};
}

void remove_at(ModuleTree& tree, StringPool& strings, ModuleId from, std::string_view path) {
  const auto [prefix, name] = split_last(path);
  const ModuleId parent = prefix.empty() ? from : tree.find(from, prefix);
  if (parent.valid()) tree.remove_child(parent, strings.intern(name));
}

// Visits the calls of one run of the root, in order: visit(frame of the call) gives the module that
// the call reaches. Merged calls run the calls of the graph that took their place. As many visits
// as the outline has frames.
void walk_run(const Outline& outline, const std::function<ModuleId(const Frame&)>& visit) {
  struct Open {
    const Frame* frame;
    size_t next;  // in its body
  };
  std::vector<Open> open{{&outline.frames.front(), 0}};
  while (!open.empty()) {
    Open& top = open.back();
    if (top.next == top.frame->body.size()) {
      open.pop_back();
      continue;
    }
    const PlannedNode& node = outline.node(top.frame->body[top.next++]);
    if (node.kind != Planned::kCall || node.removed) continue;
    const FrameId callee = outline.frame_of(visit(outline.frames[node.index]));
    if (callee.valid()) open.push_back({&outline.frames[callee.value()], 0});
  }
}

uint32_t call_number(std::string_view call_name) {
  uint32_t number = 0;
  const size_t at = call_name.rfind('@');
  if (at != std::string_view::npos) {
    std::from_chars(call_name.data() + at + 1, call_name.data() + call_name.size(), number);
  }
  return number;
}

}  // namespace

Redirects merge_calls(Outline& outline, ModuleTree& tree, StringPool& strings,
                      const SameGraph& same_graph) {
  Redirects redirects;
  for (const auto& calls : outline.calls) {
    for (size_t i = 1; i < calls.size(); ++i) {
      Frame& call = outline.frames[calls[i].value()];
      const Frame& caller = outline.frames[call.parent.value()];
      bool replaced = false;
      for (size_t k = 0; k < i; ++k) {
        const Frame& seen = outline.frames[calls[k].value()];
        if (replaced && seen.path != call.path) continue;
        if (!same_graph(calls[k], calls[i])) continue;
        if (seen.path == call.path) {
          remove_at(tree, strings, caller.module, strings.text(call.target));
          call.target =
              strings.intern(relative(strings.text(seen.call_name), strings.text(caller.path)));
          redirects.emplace(call.call_name.value(), seen.call_name);
          break;
        }
        replaced = true;
        const auto [parent, name] = tree.parent_of(caller.module, strings.text(call.target),
                                                   [&](std::string_view) { return tree.add(); });
        tree.set_child(parent, name, seen.module);
      }
    }
  }
  return redirects;
}

void merge_displaced(Outline& outline, ModuleTree& tree, StringPool& strings,
                     const SameGraph& same_graph) {
  for (FrameId id : outline.displaced) {
    Frame& frame = outline.frames[id.value()];
    const Frame& caller = outline.frames[frame.parent.value()];
    const std::string_view place =
        relative(strings.text(frame.call_name), strings.text(caller.path));
    const ModuleId module = tree.find(caller.module, place);
    const FrameId other = outline.frame_of(module);
    if (!other.valid() || !same_graph(id, other)) continue;
    remove_at(tree, strings, caller.module, strings.text(frame.target));
    frame.target = strings.intern(place);
    frame.module = module;
  }
}

std::vector<Dispatcher> dispatch_calls(Outline& outline, ModuleTree& tree, StringPool& strings,
                                       std::span<const StringId> preserved,
                                       const Redirects& redirects) {
  constexpr uint32_t kNone = 0xffffffffu;
  struct Calls {
    StringId path;
    std::vector<std::pair<uint32_t, ModuleId>> modules;  // number of the call, module
    std::vector<StringId> names;                         // call names that are modules themselves
    uint32_t dispatcher = kNone;                         // into the result
  };
  std::vector<Calls> modules;
  std::unordered_map<uint32_t, size_t> position;  // path -> place in modules
  std::unordered_map<uint32_t, ModuleId>
      module_of;  // preserved call name -> module, if any is left
  for (StringId call_name : preserved) {
    module_of[call_name.value()] = ModuleId();
    const auto redirect = redirects.find(call_name.value());
    const StringId found = redirect == redirects.end() ? call_name : redirect->second;
    const ModuleId module = tree.find(outline.root, strings.text(found));
    if (!module.valid()) continue;  // nothing of it is left in the graph
    module_of[call_name.value()] = module;
    const StringId path = strings.intern(without_call(strings.text(call_name)));
    const auto [it, added] = position.emplace(path.value(), modules.size());
    if (added) modules.push_back({path, {}, {}});
    Calls& calls = modules[it->second];
    calls.modules.emplace_back(call_number(strings.text(call_name)), module);
    if (found == call_name) calls.names.push_back(call_name);
  }

  std::vector<Dispatcher> result;
  for (Calls& calls : modules) {
    if (calls.modules.size() < 2) continue;
    std::stable_sort(calls.modules.begin(), calls.modules.end(),
                     [](const auto& a, const auto& b) { return a.first < b.first; });
    for (StringId name : calls.names) remove_at(tree, strings, outline.root, strings.text(name));
    Dispatcher dispatcher{tree.add(), calls.path, {}};
    for (const auto& [ignored, module] : calls.modules) dispatcher.calls.push_back(module);
    tree.share_children(dispatcher.module, dispatcher.calls.front());
    const auto [parent, name] = tree.parent_of(outline.root, strings.text(calls.path),
                                               [&](std::string_view) { return tree.add(); });
    tree.set_child(parent, name, dispatcher.module);
    calls.dispatcher = static_cast<uint32_t>(result.size());
    result.push_back(std::move(dispatcher));
  }
  for (Frame& frame : outline.frames) {
    if (!frame.parent.valid() || !position.contains(frame.path.value())) continue;
    if (!module_of.contains(frame.call_name.value())) continue;
    const std::string_view caller = strings.text(outline.frames[frame.parent.value()].path);
    frame.target = strings.intern(relative(strings.text(frame.path), caller));
  }
  if (result.empty()) return result;

  // A dispatcher is called as often as the merged graphs do it, which the call names don't tell.
  std::vector<std::vector<ModuleId>> reached(result.size());
  walk_run(outline, [&](const Frame& call) {
    const auto known = module_of.find(call.call_name.value());
    if (known == module_of.end() || !known->second.valid()) {
      return tree.find(outline.frames[call.parent.value()].module, strings.text(call.target));
    }
    const uint32_t dispatcher = modules[position.at(call.path.value())].dispatcher;
    if (dispatcher != kNone) reached[dispatcher].push_back(known->second);
    return known->second;
  });
  for (size_t i = 0; i < result.size(); ++i) {
    if (!reached[i].empty()) result[i].calls = std::move(reached[i]);
  }
  return result;
}

void arrange_modules(Outline& outline, ModuleTree& tree, StringPool& strings,
                     std::span<const StringId> paths) {
  FlatMap ranks;  // path -> rank
  const auto number = [&](StringId path) {
    ranks.insert(path.value(), static_cast<uint32_t>(ranks.size()));
  };
  for (StringId path : paths) number(path);
  // The other paths come in the order in which they are found. What lies below a repeated call goes
  // by the names below the first call.
  std::vector<std::pair<StringId, ModuleId>> visits{{strings.intern(""), outline.root}};
  while (!visits.empty()) {
    const auto [path, module] = visits.back();
    visits.pop_back();
    number(path);
    if (strings.text(path).find('@') != std::string_view::npos) continue;
    const auto children = tree.children(module);
    for (auto child = children.rbegin(); child != children.rend(); ++child) {
      visits.emplace_back(joined(strings, path, strings.text(child->first)), child->second);
    }
  }
  for (StringId path : paths) {
    if (strings.text(path).empty()) continue;
    const auto [parent, name] = tree.parent_of(outline.root, strings.text(path),
                                               [&](std::string_view) { return tree.add(); });
    if (!tree.child(parent, name).valid()) tree.set_child(parent, name, tree.add());
  }
  tree.sort_children(outline.root, [&](StringId path, StringId call_path) {
    uint32_t known = ranks.find(call_path.value());
    if (known == FlatMap::kAbsent) known = ranks.find(path.value());
    return known == FlatMap::kAbsent ? ranks.size() : known;
  });
}

}  // namespace fxpress::unflatten
