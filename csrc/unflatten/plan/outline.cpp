#include "unflatten/plan/outline.h"

#include <algorithm>
#include <utility>

#include "core/check.h"

namespace fxpress::unflatten {

using core::Op;

namespace {

class Outliner {
  static constexpr size_t kUsualNodes = 8;  // number of nodes in the graph of a small module

 public:
  Outliner(const OutlineSource& source, StringPool& strings, ModuleTree& tree)
      : source_(source),
        graph_(source.graph),
        strings_(strings),
        tree_(tree),
        values_(2 * source.graph.size()),
        last_user_(source.graph.size(), 0),
        is_written_back_(source.graph.size(), 0),
        is_remade_(source.graph.size(), 0) {
    for (auto i = static_cast<uint32_t>(graph_.size()); i-- > 0;) {
      const NodeId id(i);
      const bool lacks_stack = graph_.ops[i] == Op::kCallFunction && !source.stacks[i].valid();
      if (lacks_stack && source.is_remade(id)) is_remade_[i] = 1;
      // A node that is copied into the graphs of its users reads its inputs in these graphs.
      const uint32_t reads = is_remade_[i] != 0 ? std::max(i, last_user_[i]) : i;
      for (NodeId def : graph_.inputs_of(id)) {
        last_user_[def.value()] = std::max(last_user_[def.value()], reads);
      }
    }
  }

  Outline run() {
    result_.nodes.reserve(2 * graph_.size());
    result_.inputs.reserve(2 * graph_.inputs.size());
    open_root();
    for (at_ = 0; at_ < graph_.size(); ++at_) place(NodeId(at_));
    write_back();
    return std::move(result_);
  }

 private:
  CallFrame& frame(FrameId id) { return result_.frames[id.value()]; }
  bool is_seen(NodeId node) const { return node.valid() && node.value() < at_; }

  void place(NodeId id) {
    switch (graph_.ops[id.value()]) {
      case Op::kPlaceholder:
        if (in_body_) error(OutlineFault::kLatePlaceholder, id);
        copy(id, Planned::kPlaceholder);
        return;
      case Op::kOutput:
        while (open_.size() > 1) leave();
        copy(id, Planned::kCopy);
        return;
      default:
        in_body_ = true;
    }
    if (is_remade_[id.value()] != 0) return;
    const StackId stack = source_.stacks[id.value()];
    if (!stack.valid()) error(OutlineFault::kNoStack, id);
    if (stack != OutlineSource::kInherits) go_to(source_.scopes[stack], id);
    if (graph_.ops[id.value()] == Op::kGetAttr) frame(current_).get_attrs.push_back(id);
    copy(id, Planned::kCopy);
  }

  // Leaves the open calls that are not in `stack`, then enters the calls of `stack`.
  void go_to(std::span<const ModuleCall> stack, NodeId id) {
    size_t common = 0;
    while (common < open_.size() && common < stack.size() &&
           scopes_[common].same_call(stack[common])) {
      ++common;
    }
    if (common == 0) error(OutlineFault::kNotBelowRoot, id);
    while (open_.size() > common) leave();
    for (size_t depth = common; depth < stack.size(); ++depth) enter(stack[depth], id);
  }

  void copy(NodeId id, Planned kind) {
    inputs_.clear();
    for (NodeId def : graph_.inputs_of(id)) inputs_.push_back(value(current_, def));
    const PlannedId planned = plan(current_, kind, inputs_, id);
    result_.node(planned).custom = source_.custom[id.value()];
    append(current_, planned);
    map(current_, id, planned);
  }

  // ---- values ----

  static uint64_t key(FrameId frame, NodeId node) {
    return (uint64_t{frame.value()} << 32) | node.value();
  }
  // Returns the planned node for the value of `node` in a frame's graph, or an invalid id.
  PlannedId find(FrameId frame, NodeId node) const {
    const uint32_t known = values_.find(key(frame, node));
    return known == FlatMap::kAbsent ? PlannedId() : PlannedId(known >> 1);
  }
  // Records the planned node for a value that a frame may get from its caller and never returns.
  void map_input(FrameId id, NodeId node, PlannedId planned) {
    values_.assign(key(id, node), planned.value() << 1);
  }
  // Records the planned node for a value that a frame's graph computes and may return.
  void map(FrameId id, NodeId node, PlannedId planned) {
    const uint32_t known = values_.find(key(id, node));
    if (known == FlatMap::kAbsent || (known & 1) == 0) frame(id).mapped.push_back(node);
    values_.assign(key(id, node), planned.value() << 1 | 1);
  }

  // Returns a value's planned node in a frame. If there is none, plans to pass or recompute it.
  PlannedId value(FrameId where, NodeId node) {
    struct Task {
      FrameId frame;
      NodeId node;
      bool passing;  // whether the frame already has a placeholder for the value
    };
    if (const PlannedId known = find(where, node); known.valid()) return known;
    std::vector<Task> tasks{{where, node, false}};
    while (!tasks.empty()) {
      const Task task = tasks.back();
      if (task.passing) {
        frame(task.frame).passed.push_back(find(frame(task.frame).parent, task.node));
        tasks.pop_back();
        continue;
      }
      if (find(task.frame, task.node).valid()) {
        tasks.pop_back();
        continue;
      }
      const bool is_placeholder = graph_.ops[task.node.value()] == Op::kPlaceholder;
      const bool is_remade = is_remade_[task.node.value()] != 0;
      if (is_placeholder || (!is_remade && !frame(task.frame).path_has_signature)) {
        add_input(task.frame, task.node);
        tasks.back().passing = true;
        tasks.push_back({frame(task.frame).parent, task.node, false});
        continue;
      }
      if (graph_.ops[task.node.value()] != Op::kCallFunction) {
        error(OutlineFault::kCannotPass, task.node, where_is(task.frame));
      }
      const auto inputs = graph_.inputs_of(task.node);
      if (is_remade || source_.is_recomputable(task.node)) {
        const auto missing = std::find_if(inputs.begin(), inputs.end(), [&](NodeId input) {
          return !find(task.frame, input).valid();
        });
        if (missing == inputs.end()) {
          recompute(task.frame, task.node);
        } else {
          tasks.push_back({task.frame, *missing, false});
        }
        continue;
      }
      // The value is the result of a functionalized write: read the written tensor instead.
      if (inputs.empty()) {
        error(OutlineFault::kCannotPass, task.node, where_is(task.frame));
      }
      if (const PlannedId written = find(task.frame, inputs[0]); written.valid()) {
        if (!source_.is_mutation(task.node)) is_written_back_[task.node.value()] = 1;
        map_input(task.frame, task.node, written);
      } else {
        tasks.push_back({task.frame, inputs[0], false});
      }
    }
    return find(where, node);
  }

  void add_input(FrameId id, NodeId node) {
    if (!frame(id).parent.valid()) error(OutlineFault::kCannotPass, node, where_is(id));
    const PlannedId planned = plan(id, Planned::kInput, {}, node);
    frame(id).front.push_back(planned);
    frame(id).outer.push_back(node);
    map_input(id, node, planned);
  }

  void recompute(FrameId id, NodeId node) {
    std::vector<PlannedId> inputs;
    for (NodeId def : graph_.inputs_of(node)) inputs.push_back(find(id, def));
    const PlannedId planned = plan(id, Planned::kRecompute, inputs, node);
    result_.node(planned).custom = source_.custom[node.value()];
    append(id, planned);
    if (is_remade_[node.value()] != 0) {
      map_input(id, node, planned);  // other graphs repeat the node
    } else {
      map(id, node, planned);
    }
  }

  // ---- planning ----

  PlannedId plan(FrameId id, Planned kind, std::span<const PlannedId> inputs, NodeId source = {},
                 uint32_t index = 0) {
    PlannedNode node;
    node.kind = kind;
    node.frame = id;
    node.source = source;
    node.index = index;
    node.input_begin = static_cast<uint32_t>(result_.inputs.size());
    node.input_count = static_cast<uint32_t>(inputs.size());
    result_.inputs.insert(result_.inputs.end(), inputs.begin(), inputs.end());
    result_.nodes.push_back(node);
    const PlannedId planned(result_.nodes.size() - 1);
    frame(id).created.push_back(planned);
    return planned;
  }

  // Appends a node to the frame's graph. In the caller of the current frame, the last node is the
  // call; the new node comes before the call.
  void append(FrameId id, PlannedId planned) {
    auto& body = frame(id).body;
    body.insert(id == current_ ? body.end() : body.end() - 1, planned);
  }
  PlannedId plan_and_append(FrameId id, Planned kind, std::span<const PlannedId> inputs,
                            NodeId source = {}, uint32_t index = 0) {
    const PlannedId planned = plan(id, kind, inputs, source, index);
    append(id, planned);
    return planned;
  }

  PlannedId plan_spec(FrameId id, uint32_t signature, bool of_outputs) {
    const auto number = static_cast<uint32_t>(frame(id).specs.size());
    frame(id).specs.push_back({signature, of_outputs});
    return plan_and_append(id, Planned::kSpec, {}, {}, number);
  }

  // ---- entering ----

  void open_root() {
    result_.root = add_module(ModuleCall::kNoType);
    CallFrame root(result_.memory.get());
    root.path = root.call_name = root.key = strings_.intern("");
    root.module = result_.root;
    root.path_has_signature = source_.signature_of.contains(root.path.value());
    scopes_.push_back({root.path, ModuleCall::kNoType, 0, root.key});
    push_frame(std::move(root));
  }

  ModuleId add_module(uint32_t type) {
    const ModuleId module = tree_.add();
    result_.module_frame.resize(tree_.size(), Outline::kNoFrame);
    result_.module_type.resize(tree_.size(), ModuleCall::kNoType);
    result_.module_type[module.value()] = type;
    return module;
  }

  void push_frame(CallFrame frame) {
    current_ = FrameId(result_.frames.size());
    result_.module_frame[frame.module.value()] = current_.value();
    open_.push_back(current_);
    frame.created.reserve(kUsualNodes);
    frame.body.reserve(kUsualNodes);
    result_.frames.push_back(std::move(frame));
  }

  void enter(const ModuleCall& scope, NodeId id) {
    const FrameId caller = current_;
    CallFrame callee(result_.memory.get());
    callee.parent = caller;
    callee.path = scope.path;
    callee.call_index = scope.call;
    callee.key = scope.key;
    name_call(callee);
    const std::string_view call_name = strings_.text(callee.call_name);
    const std::string_view caller_path = strings_.text(frame(caller).path);
    if (!is_below(call_name, caller_path)) {
      error(OutlineFault::kNotDescendant, id,
            "Child module '" + std::string(call_name) + "' is not a descendant of parent module '" +
                std::string(caller_path) + "'.");
    }
    callee.target = strings_.intern(relative_name(callee));
    add_to_tree(callee, scope.type);
    if (const auto it = source_.signature_of.find(callee.call_name.value());
        it != source_.signature_of.end()) {
      callee.signature = it->second;
    }
    callee.path_has_signature = source_.signature_of.contains(scope.path.value());
    callee.call = plan_and_append(caller, Planned::kCall, {}, {},
                                  static_cast<uint32_t>(result_.frames.size()));
    const auto [index, added] =
        calls_.insert(scope.key.value(), static_cast<uint32_t>(result_.calls.size()));
    if (added) {
      result_.keys.push_back(scope.key);
      result_.calls.emplace_back(result_.memory.get());
    }
    auto& calls = result_.calls[index];
    if (!added) {
      tree_.share_children(callee.module, frame(calls.front()).module);
    }
    calls.emplace_back(result_.frames.size());
    scopes_.push_back(scope);
    push_frame(std::move(callee));
    if (frame(current_).signature != CallFrame::kNoSignature) unpack_arguments(caller);
  }

  // If nodes of another module interrupt the nodes of a call, the call is entered twice. The second
  // part becomes a call with a new number, because its graph differs.
  void name_call(CallFrame& callee) {
    if (next_call_.size() == 0) {
      for (size_t i = 0; i < source_.scopes.size(); ++i) {
        for (const ModuleCall& scope : source_.scopes[StackId(i)]) {
          const uint64_t path = scope.path.value();
          const auto [next, added] = next_call_.insert(path, scope.call + 1);
          if (next <= scope.call) next_call_.assign(path, scope.call + 1);
        }
      }
    }
    callee.call_name = call_name(callee.path, callee.call_index);
    while (!taken_.insert(callee.call_name.value(), 0).added) {
      callee.call_index = next_call_.find(callee.path.value());
      next_call_.assign(callee.path.value(), callee.call_index + 1);
      callee.call_name = call_name(callee.path, callee.call_index);
    }
  }

  StringId call_name(StringId path, uint32_t call) {
    if (call == 0) return path;
    return strings_.intern(std::string(strings_.text(path)) + '@' + std::to_string(call));
  }

  // Adds the callee's module to the tree, and missing modules (without a class) between caller and
  // callee. If a later call has the path of such a module, the call uses it and sets its class.
  void add_to_tree(CallFrame& callee, uint32_t type) {
    const CallFrame& caller = frame(callee.parent);
    const std::string_view caller_path = strings_.text(caller.path);
    const auto [parent, name] =
        tree_.parent_of(caller.module, strings_.text(callee.target), [&](std::string_view prefix) {
          std::string path(caller_path);
          if (!path.empty()) path += '.';
          path += prefix;
          const StringId id = strings_.intern(path);
          const auto [it, added] = uncalled_.emplace(id.value(), ModuleId());
          if (added) it->second = add_module(ModuleCall::kNoType);
          return it->second;
        });
    const ModuleId there = tree_.child(parent, name);
    const auto is_uncalled = [&](ModuleId id) {
      return id.valid() && !result_.frame_of(id).valid();
    };
    const auto made = uncalled_.find(callee.path.value());
    if (made != uncalled_.end() && is_uncalled(made->second)) {
      callee.module = made->second;
    } else if (is_uncalled(there)) {
      callee.module = there;  // added under another path of the caller
    } else {
      callee.module = add_module(type);
    }
    result_.module_type[callee.module.value()] = type;
    if (there.valid() && there != callee.module) displace(parent, name, there);
    tree_.set_child(parent, name, callee.module);
  }

  // Calls of one module object share a table of children, so two calls may need the same name in
  // the table. As in torch, the later call gets the name. The earlier call, `module`, gets an
  // unused name until merge_displaced() compares both calls.
  void displace(ModuleId parent, StringId name, ModuleId module) {
    const FrameId id = result_.frame_of(module);
    if (!id.valid()) return;
    const std::string_view text = strings_.text(name);
    const StringId base = strings_.intern(without_call(text));
    uint32_t& number = displaced_[uint64_t{tree_.table_of(parent)} << 32 | base.value()];
    StringId free;
    do {
      free = call_name(base, ++number);
    } while (tree_.child(parent, free).valid());
    tree_.set_child(parent, free, module);
    CallFrame& other = frame(id);
    const std::string_view target = strings_.text(other.target);
    const size_t dot = target.rfind('.');
    const size_t kept = dot == std::string_view::npos ? 0 : dot + 1;
    if (other.target == strings_.intern(relative_name(other))) result_.displaced.push_back(id);
    other.target =
        strings_.intern(std::string(target.substr(0, kept)) + std::string(strings_.text(free)));
  }

  // Returns the call name relative to the caller's path.
  std::string_view relative_name(const CallFrame& callee) const {
    const std::string_view caller = strings_.text(result_.frames[callee.parent.value()].path);
    return relative(strings_.text(callee.call_name), caller);
  }

  // Plans the arguments of a call with a preserved signature. The caller rebuilds the arguments of
  // the original call, and the callee's graph flattens them.
  void unpack_arguments(FrameId caller) {
    const FrameId callee = current_;
    const uint32_t number = frame(callee).signature;
    const CallSignature& signature = source_.signatures[number];
    std::vector<PlannedId> arguments;
    const size_t count = signature.positional + signature.keywords.size();
    arguments.reserve(count + 1);
    for (uint32_t i = 0; i < count; ++i) {
      arguments.push_back(plan_and_append(callee, Planned::kArgument, {}, {}, i));
    }
    arguments.push_back(plan_spec(callee, number, false));
    const PlannedId leaves = plan_and_append(callee, Planned::kFlattenInputs, arguments);
    for (uint32_t i = 0; i < signature.inputs.size(); ++i) {
      const SignatureLeaf& leaf = signature.inputs[i];
      const NodeId source = is_seen(leaf.node) ? leaf.node : NodeId();
      const PlannedId item = plan_and_append(callee, Planned::kInputLeaf, {&leaves, 1}, source, i);
      if (source.valid()) map_input(callee, source, item);
    }

    std::vector<PlannedId> values;
    values.reserve(signature.inputs.size() + 1);
    for (const SignatureLeaf& leaf : signature.inputs) {
      values.push_back(is_seen(leaf.node) ? value(caller, leaf.node) : PlannedId());
    }
    values.push_back(plan_spec(caller, number, false));
    const PlannedId both = plan_and_append(caller, Planned::kUnflattenInputs, values, {}, number);
    const PlannedId args = plan_and_append(caller, Planned::kItem, {&both, 1}, {}, 0);
    const PlannedId kwargs = plan_and_append(caller, Planned::kItem, {&both, 1}, {}, 1);
    std::vector<PlannedId> passed;
    passed.reserve(count);
    for (uint32_t i = 0; i < signature.positional; ++i) {
      passed.push_back(plan_and_append(caller, Planned::kItem, {&args, 1}, {}, i));
    }
    for (StringId keyword : signature.keywords) {
      passed.push_back(
          plan_and_append(caller, Planned::kKeywordItem, {&kwargs, 1}, {}, keyword.value()));
    }
    PlannedNode& call = result_.node(frame(callee).call);
    call.input_begin = static_cast<uint32_t>(result_.inputs.size());
    call.input_count = static_cast<uint32_t>(passed.size());
    result_.inputs.insert(result_.inputs.end(), passed.begin(), passed.end());
  }

  // ---- leaving ----

  void leave() {
    const FrameId callee = current_;
    const FrameId caller = frame(callee).parent;
    uncalled_.erase(frame(callee).path.value());
    const bool preserved = frame(callee).signature != CallFrame::kNoSignature;
    preserved ? return_preserved(callee) : return_values(callee);
    move_custom_meta(callee);
    open_.pop_back();
    scopes_.pop_back();
    current_ = caller;
    PlannedId result = frame(callee).call;
    if (preserved) {
      const PlannedId inputs[] = {result, plan_spec(caller, frame(callee).signature, true)};
      result = plan_and_append(caller, Planned::kFlattenOutputs, inputs);
    } else if (frame(callee).outputs.size() == 1) {
      map(caller, frame(callee).outputs[0], result);
      return;
    }
    for (uint32_t i = 0; i < frame(callee).outputs.size(); ++i) {
      const NodeId output = frame(callee).outputs[i];
      if (!output.valid()) continue;
      map(caller, output, plan_and_append(caller, Planned::kOutputItem, {&result, 1}, output, i));
    }
  }

  // Plans the outputs of the frame: the values that later nodes need.
  void return_values(FrameId id) {
    std::vector<PlannedId> values;
    for (NodeId node : frame(id).mapped) {
      if (last_user_[node.value()] < at_) continue;
      frame(id).outputs.push_back(node);
      values.push_back(find(id, node));
    }
    plan_and_append(id, Planned::kOutput, values);
  }

  void return_preserved(FrameId id) {
    const uint32_t number = frame(id).signature;
    std::vector<PlannedId> values;
    for (const SignatureLeaf& leaf : source_.signatures[number].outputs) {
      const NodeId node = is_seen(leaf.node) ? leaf.node : NodeId();
      PlannedId known;
      if (node.valid()) {
        const bool is_available =
            graph_.ops[node.value()] == Op::kPlaceholder || is_remade_[node.value()] != 0;
        known = is_available ? value(id, node) : find(id, node);
        if (!known.valid()) error(OutlineFault::kMissingOutput, node, where_is(id));
      }
      frame(id).outputs.push_back(node);
      values.push_back(known);
    }
    values.push_back(plan_spec(id, number, true));
    const PlannedId result = plan_and_append(id, Planned::kUnflattenOutputs, values, {}, number);
    plan_and_append(id, Planned::kOutput, {&result, 1});
  }

  // If all nodes of a call have equal meta["custom"], moves it from these nodes to the call node.
  void move_custom_meta(FrameId id) {
    const CallFrame& callee = frame(id);
    if (callee.mapped.empty()) return;
    const uint32_t common = result_.node(find(id, callee.mapped[0])).custom;
    if (common == 0) return;
    for (NodeId node : callee.mapped) {
      if (result_.node(find(id, node)).custom != common) return;
    }
    result_.node(callee.call).custom = common;
    for (NodeId node : callee.mapped) {
      PlannedNode& planned = result_.node(find(id, node));
      planned.custom = 0;
      planned.lose_custom = true;
    }
  }

  // Restores in-place writes. If value() has replaced the result of a functionalized write by the
  // written tensor, adds a copy_ that writes the result to this tensor.
  void write_back() {
    if (std::find(is_written_back_.begin(), is_written_back_.end(), 1) == is_written_back_.end()) {
      return;
    }
    for (uint32_t f = 1; f < result_.frames.size(); ++f) {
      const FrameId id(f);
      std::pmr::vector<PlannedId> body(result_.memory.get());
      for (PlannedId planned : frame(id).body) {
        body.push_back(planned);
        const PlannedNode& node = result_.node(planned);
        if (node.kind != Planned::kCopy || is_written_back_[node.source.value()] == 0) continue;
        const PlannedId inputs[] = {result_.inputs[node.input_begin], planned};
        body.push_back(plan(id, Planned::kWriteBack, inputs, node.source));
      }
      frame(id).body = std::move(body);
    }
  }

  std::string where_is(FrameId id) const {
    return std::string(strings_.text(result_.frames[id.value()].call_name));
  }

  [[noreturn]] static void error(OutlineFault fault, NodeId node, const std::string& detail = {}) {
    throw OutlineError(fault, node, detail);
  }

  const OutlineSource& source_;
  const Graph& graph_;
  StringPool& strings_;
  ModuleTree& tree_;
  Outline result_;
  uint32_t at_ = 0;                       // the node of the flat graph that is being placed
  bool in_body_ = false;                  // whether all placeholders are placed
  FrameId current_;                       // the innermost open frame
  std::vector<FrameId> open_;             // the open frames, outermost first
  std::vector<ModuleCall> scopes_;        // the calls of the open frames
  FlatMap values_;                        // (frame, flat node) -> planned node; see map()
  std::vector<uint32_t> last_user_;       // by flat node: position of its last user
  std::vector<uint8_t> is_written_back_;  // by flat node: see write_back()
  std::vector<uint8_t> is_remade_;        // by flat node: see OutlineSource::is_remade
  FlatMap taken_;                         // call names in use
  FlatMap calls_;                         // key of a module -> position in result_.calls
  FlatMap next_call_;                     // path of a module -> an unused call number
  std::unordered_map<uint32_t, ModuleId> uncalled_;   // path -> module that no call has used yet
  std::unordered_map<uint64_t, uint32_t> displaced_;  // (table, name) -> last number used
  std::vector<PlannedId> inputs_;                     // inputs of the node being copied
};

}  // namespace

std::vector<PlannedId> Outline::order(FrameId id) const {
  const CallFrame& frame = frames[id.value()];
  std::vector<PlannedId> result;
  result.reserve(frame.front.size() + frame.states.size() + frame.body.size());
  const auto add = [&](PlannedId planned) {
    if (!node(planned).removed) result.push_back(planned);
  };
  std::for_each(frame.front.rbegin(), frame.front.rend(), add);
  const auto is_argument = [&](PlannedId planned) {
    const Planned kind = node(planned).kind;
    return kind == Planned::kArgument || kind == Planned::kPlaceholder;
  };
  const auto rest = std::find_if_not(frame.body.begin(), frame.body.end(), is_argument);
  std::for_each(frame.body.begin(), rest, add);
  std::for_each(frame.states.rbegin(), frame.states.rend(), add);
  std::for_each(rest, frame.body.end(), add);
  return result;
}

Outline outline(const OutlineSource& source, StringPool& strings, ModuleTree& tree) {
  return Outliner(source, strings, tree).run();
}

}  // namespace fxpress::unflatten
