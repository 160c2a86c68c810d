#include "unflatten/plan/state_lowering.h"

namespace fxpress::unflatten {

using core::FrameId;
using core::ModuleId;
using core::NodeId;
using core::PlannedId;
using core::StringId;
using core::StringPool;

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
    for (const Frame& frame : outline.frames) {
      for (PlannedId passed : frame.passed) count_use(passed, 1);
    }
  }

  // Children before parents: a parent drops what its children no longer ask for.
  void run() {
    struct Visit {
      ModuleId module;
      StringId path;  // from the root, without call numbers
      bool children_done;
    };
    std::vector<Visit> visits{{outline_.root, strings_.intern(""), false}};
    while (!visits.empty()) {
      const Visit visit = visits.back();
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
    Frame& frame = outline_.frames[id.value()];
    // The order is that of the placeholders, in which torch names the nodes that replace them.
    for (size_t k = frame.front.size(); k-- > 0;) {
      if (sink_input(frame, id, frame.front[k], path)) count_use(frame.passed[k], -1);
    }
    for (size_t k = 0; k < frame.body.size(); ++k) {
      if (outline_.node(frame.body[k]).kind != Planned::kPlaceholder) break;
      sink_input(frame, id, frame.body[k], path);
    }
  }

  bool sink_input(Frame& frame, FrameId id, PlannedId input, std::string_view path) {
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
        state.path = strings_.intern(path.empty() ? text : text.substr(path.size() + 1));
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
  std::vector<int> uses_;      // by planned node
  std::vector<uint8_t> done_;  // by module
};

}  // namespace

void lower_state(Outline& outline, ModuleTree& tree, StringPool& strings,
                 const std::vector<std::vector<StringId>>& targets) {
  StateLowering(outline, tree, strings, targets).run();
}

}  // namespace fxpress::unflatten
