#include "unflatten/plan/arrange.h"

#include <algorithm>
#include <charconv>

namespace fxpress::unflatten {

namespace {

class StateLowering {
 public:
  StateLowering(Outline& outline, ModuleTree& tree, StringPool& strings,
                const std::vector<std::vector<StringId>>& targets)
      : outline_(outline),
        tree_(tree),
        strings_(strings),
        targets_(targets),
        uses_(outline.nodes.size(), 0),
        done_(tree.size(), 0) {
    for (const PlannedNode& node : outline.nodes) {
      for (uint32_t i = 0; i < node.input_count; ++i) {
        count_use(outline.inputs[node.input_begin + i], 1);
      }
    }
    for (const CallFrame& frame : outline.frames) {
      for (PlannedId passed : frame.passed) count_use(passed, 1);
    }
  }

  // Visits children first, so that a parent gets get_attr nodes only for state that is still used.
  void run() {
    struct ModuleVisit {
      ModuleId module;
      StringId path;  // path from the root, without call numbers
      bool children_done;
    };
    std::vector<ModuleVisit> visits{{outline_.root, strings_.intern(""), false}};
    while (!visits.empty()) {
      const ModuleVisit visit = visits.back();
      if (visit.children_done) {
        const FrameId frame = outline_.frame_of(visit.module);
        if (frame.valid()) sink(frame, strings_.text(visit.path));
        visits.pop_back();
        continue;
      }
      visits.back().children_done = true;
      if (done_[visit.module.value()] != 0) {
        visits.pop_back();
        continue;
      }
      done_[visit.module.value()] = 1;
      const auto children = tree_.children(visit.module);
      for (auto child = children.rbegin(); child != children.rend(); ++child) {
        const std::string_view name = without_call(strings_.text(child->first));
        visits.push_back({child->second, joined(strings_, visit.path, name), false});
      }
    }
  }

 private:
  void count_use(PlannedId id, int by) {
    if (id.valid()) uses_[id.value()] += by;
  }

  void sink(FrameId id, std::string_view path) {
    CallFrame& frame = outline_.frames[id.value()];
    // `front` is reversed, and torch names get_attr nodes in the order of the placeholders.
    for (size_t k = frame.front.size(); k-- > 0;) {
      if (sink_input(frame, id, frame.front[k], path)) count_use(frame.passed[k], -1);
    }
    for (size_t k = 0; k < frame.body.size(); ++k) {
      if (outline_.node(frame.body[k]).kind != Planned::kPlaceholder) break;
      sink_input(frame, id, frame.body[k], path);
    }
  }

  bool sink_input(CallFrame& frame, FrameId id, PlannedId input, std::string_view path) {
    const NodeId source = outline_.node(input).source;
    for (StringId target : targets_[source.value()]) {
      const std::string_view text = strings_.text(target);
      if (!is_below(text, path)) continue;
      outline_.node(input).removed = true;
      if (uses_[input.value()] > 0) {
        PlannedNode state;
        state.kind = Planned::kState;
        state.frame = id;
        state.source = source;
        state.path = strings_.intern(relative(text, path));
        const PlannedId planned(outline_.nodes.size());
        outline_.nodes.push_back(state);
        uses_.push_back(0);
        frame.created.push_back(planned);
        frame.states.push_back(planned);
        outline_.node(input).replacement = planned;
      }
      return true;
    }
    return false;
  }

  Outline& outline_;
  ModuleTree& tree_;
  StringPool& strings_;
  const std::vector<std::vector<StringId>>& targets_;
  std::vector<int> uses_;      // by planned node: number of its uses
  std::vector<uint8_t> done_;  // by module: whether it was visited
};

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

// Visits the module calls in one execution of the root module, in order. visit(frame of the call)
// returns the module that the call runs, which merge_calls() may have changed.
void walk_run(const Outline& outline, const std::function<ModuleId(const CallFrame&)>& visit) {
  struct OpenFrame {
    const CallFrame* frame;
    size_t next;  // position of the next node in the body of the frame
  };
  std::vector<OpenFrame> open{{&outline.frames.front(), 0}};
  while (!open.empty()) {
    OpenFrame& top = open.back();
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

void lower_state(Outline& outline, ModuleTree& tree, StringPool& strings,
                 const std::vector<std::vector<StringId>>& targets) {
  StateLowering(outline, tree, strings, targets).run();
}

StatePlaces::StatePlaces(ModuleTree& tree, StringPool& strings, ModuleId root,
                         std::span<const std::string_view> names)
    : tree_(tree), strings_(strings) {
  known_.push_back({root});
  for (std::string_view name : names) {
    for (size_t at = name.find('@'); at != std::string_view::npos; at = name.find('@', at)) {
      at = name.find('.', at);
      if (at != std::string_view::npos) own_.insert(strings.intern(name.substr(0, at)).value(), 0);
    }
  }
}

// Returns the children of `parent` that are calls of its child `name`. Adds this child if it is
// missing. path: the path of `parent`.
const std::vector<ModuleId>& StatePlaces::calls_of(ModuleId parent, std::string_view path,
                                                   StringId name) {
  const uint32_t table = tree_.table_of(parent);
  const auto calls_named = [&](StringId base) -> std::vector<ModuleId>& {
    const auto [index, added] = calls_below_.insert(uint64_t{table} << 32 | base.value(),
                                                    static_cast<uint32_t>(calls_.size()));
    return added ? calls_.emplace_back() : calls_[index];
  };
  if (grouped_.insert(table, 0).added) {
    for (const auto& [child_name, child] : tree_.children(parent)) {
      const std::string_view text = strings_.text(child_name);
      const std::string_view base = text.substr(0, text.rfind('@'));
      const bool is_call =
          base.size() < text.size() && is_call_of(text, base) &&
          (own_.size() == 0 ||
           own_.find(joined(strings_, strings_.intern(path), text).value()) == FlatMap::kAbsent);
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
    const auto [index, added] =
        below_.insert(uint64_t{at} << 32 | name.value(), static_cast<uint32_t>(known_.size()));
    if (added) {
      std::vector<ModuleId>& modules = known_.emplace_back();
      for (ModuleId parent : known_[at]) {
        const std::string_view parent_path = path.substr(0, start == 0 ? 0 : start - 1);
        for (ModuleId module : calls_of(parent, parent_path, name)) {
          if (std::find(modules.begin(), modules.end(), module) == modules.end()) {
            modules.push_back(module);
          }
        }
      }
    }
    at = index;
    start = end + 1;
  }
  return known_[at];
}

Redirects merge_calls(Outline& outline, ModuleTree& tree, StringPool& strings,
                      const SameGraph& same_graph) {
  Redirects redirects;
  for (const auto& calls : outline.calls) {
    for (size_t i = 1; i < calls.size(); ++i) {
      CallFrame& call = outline.frames[calls[i].value()];
      const CallFrame& caller = outline.frames[call.parent.value()];
      bool replaced = false;
      for (size_t k = 0; k < i; ++k) {
        const CallFrame& seen = outline.frames[calls[k].value()];
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
    CallFrame& frame = outline.frames[id.value()];
    const CallFrame& caller = outline.frames[frame.parent.value()];
    const std::string_view name =
        relative(strings.text(frame.call_name), strings.text(caller.path));
    const ModuleId module = tree.find(caller.module, name);
    const FrameId other = outline.frame_of(module);
    if (!other.valid() || !same_graph(id, other)) continue;
    remove_at(tree, strings, caller.module, strings.text(frame.target));
    frame.target = strings.intern(name);
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
    std::vector<StringId> names;  // call names that merge_calls() has not redirected
    uint32_t dispatcher = kNone;  // index in `result`, or kNone
  };
  std::vector<Calls> modules;
  std::unordered_map<uint32_t, size_t> position;     // path -> index in modules
  std::unordered_map<uint32_t, ModuleId> module_of;  // preserved call name -> module, or invalid
  for (StringId call_name : preserved) {
    module_of[call_name.value()] = ModuleId();
    const auto redirect = redirects.find(call_name.value());
    const StringId found = redirect == redirects.end() ? call_name : redirect->second;
    const ModuleId module = tree.find(outline.root, strings.text(found));
    if (!module.valid()) continue;  // the graph has no node that was traced in the call
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
  for (CallFrame& frame : outline.frames) {
    if (!frame.parent.valid() || !position.contains(frame.path.value())) continue;
    if (!module_of.contains(frame.call_name.value())) continue;
    const std::string_view caller = strings.text(outline.frames[frame.parent.value()].path);
    frame.target = strings.intern(relative(strings.text(frame.path), caller));
  }
  if (result.empty()) return result;

  // Call names do not show how often merged graphs call a dispatcher, so follow one execution.
  std::vector<std::vector<ModuleId>> reached(result.size());
  walk_run(outline, [&](const CallFrame& call) {
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
  // Paths that are not in `paths` follow in the order of the walk. Modules below a repeated call
  // are ranked by their paths below the first call.
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
