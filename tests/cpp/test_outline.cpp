// Outlining, sinking and merging must not change what a graph computes: random graphs with random
// stacks of modules are run flat and outlined.
#include <doctest/doctest.h>

#include <map>
#include <set>
#include <string>
#include <vector>

#include "support.h"
#include "unflatten/plan/arrange.h"
#include "unflatten/plan/outline.h"

using namespace fxpress::core;
using namespace fxpress::unflatten;
using namespace fxpress::core::testing;

namespace {

uint64_t mix(uint64_t seed, uint64_t value) {
  return (seed ^ (value + 0x9e3779b97f4a7c15ull + (seed << 6) + (seed >> 2))) *
         0xff51afd7ed558ccdull;
}

// A flat graph whose nodes were traced in the modules of a small random tree.
struct Program {
  StringPool strings;
  ModuleTree tree{strings};
  Graph graph;
  std::vector<StackId> stacks;
  ModuleCallStacks scopes;
  std::vector<uint32_t> custom;
  std::vector<CallSignature> signatures;
  std::unordered_map<uint32_t, uint32_t> signature_of;
  std::set<uint32_t> remade;  // nodes without a stack that belong to their users

  ModuleCall scope(const std::string& path, uint32_t call) {
    ModuleCall result;
    result.path = strings.intern(path);
    result.type = path.empty() ? ModuleCall::kNoType : 0;
    result.call = call;
    result.key = strings.intern("L__" + path);
    return result;
  }

  OutlineSource source() {
    return {graph,
            stacks,
            scopes,
            custom,
            signatures,
            signature_of,
            [](NodeId) { return false; },
            [](NodeId) { return false; },
            [this](NodeId node) { return remade.contains(node.value()); }};
  }

  // The value of the node, from the values of its inputs.
  uint64_t apply(NodeId node, const std::vector<uint64_t>& inputs) const {
    uint64_t value = mix(7, graph.targets[node.value()].value());
    for (uint64_t input : inputs) value = mix(value, input);
    return value;
  }

  uint64_t run_flat() const {
    std::vector<uint64_t> values;
    for (uint32_t i = 0; i < graph.size(); ++i) {
      std::vector<uint64_t> inputs;
      for (NodeId def : graph.inputs_of(NodeId(i))) inputs.push_back(values[def.value()]);
      values.push_back(apply(NodeId(i), inputs));
    }
    return values.back();
  }
};

void make_program(Random& random, Program& program) {
  const uint32_t size = 4 + random.below(40);
  program.graph = random_graph(random, size);
  const std::vector<std::string> paths = {"", "a", "a.b", "a.b.c", "d", "d.list.0", "d.list.1"};
  std::map<std::string, uint32_t> calls;
  std::string at;
  for (uint32_t i = 0; i < size; ++i) {
    program.graph.targets[i] = ObjectId(random.below(6));
    if (program.graph.ops[i] == Op::kPlaceholder) program.graph.targets[i] = ObjectId(100 + i);
    if (random.percent(30)) at = paths[random.below(paths.size())];
    if (random.percent(10)) ++calls[at];
    std::vector<ModuleCall> stack;
    for (const std::string& path : paths) {
      if (path == at || is_below(at, path)) stack.push_back(program.scope(path, calls[path]));
    }
    if (stack[0].call != 0) stack[0].call = 0;
    program.stacks.push_back(program.scopes.intern(stack));
    if (program.graph.ops[i] == Op::kCallFunction && random.percent(10)) {
      program.stacks.back() = StackId();
      program.remade.insert(i);
    }
  }
  program.custom.assign(size, 0);
}

// Module "a" with "a.b" in it, called again and again: most calls have the same graph.
void make_repetition(Random& random, Program& program) {
  std::vector<std::vector<uint32_t>> inputs = {{}};
  const auto add = [&](uint32_t target, const std::vector<ModuleCall>& stack) {
    const auto last = static_cast<uint32_t>(inputs.size() - 1);
    inputs.push_back({last});
    program.graph.targets.emplace_back(target);
    program.stacks.push_back(program.scopes.intern(stack));
  };
  const ModuleCall root = program.scope("", 0);
  program.stacks.push_back(program.scopes.intern({&root, 1}));
  program.graph.targets.emplace_back(uint32_t{0});
  for (uint32_t call = 0; call < 6; ++call) {
    const std::vector<ModuleCall> outer = {root, program.scope("a", call)};
    std::vector<ModuleCall> inner = outer;
    inner.push_back(program.scope("a.b", call));
    add(1, outer);
    add(random.percent(80) ? 2 : 3, inner);
    add(random.percent(80) ? 4 : 5, outer);
  }
  add(6, {root});
  const std::vector<ObjectId> targets = std::move(program.graph.targets);
  program.graph = make_graph(inputs);
  program.graph.targets = targets;
  program.graph.ops.front() = Op::kPlaceholder;
  program.graph.ops.back() = Op::kOutput;
  program.custom.assign(inputs.size(), 0);
}

// Runs the graph of a frame, with the frames that it calls.
class Runner {
 public:
  Runner(const Program& program, const Outline& outline, const std::map<uint32_t, FrameId>& callees)
      : program_(program), outline_(outline), callees_(callees) {}

  uint64_t run() { return run_frame(FrameId(uint32_t{0}), {}).back(); }

 private:
  FrameId callee_of(uint32_t frame) const {
    const auto it = callees_.find(frame);
    return it == callees_.end() ? FrameId(frame) : it->second;
  }

  std::vector<uint64_t> run_frame(FrameId id, const std::vector<uint64_t>& arguments) {
    std::map<uint32_t, uint64_t> values;
    std::map<uint32_t, std::vector<uint64_t>> tuples;
    std::vector<uint64_t> result;
    size_t argument = 0;
    const auto value = [&](PlannedId planned) {
      return values.at(outline_.resolve(planned).value());
    };
    for (PlannedId planned : outline_.order(id)) {
      const PlannedNode& node = outline_.node(planned);
      std::vector<uint64_t> inputs;
      switch (node.kind) {
        case Planned::kPlaceholder:
        case Planned::kState:
          values[planned.value()] = program_.apply(node.source, {});
          break;
        case Planned::kInput:
          values[planned.value()] = arguments.at(argument++);
          break;
        case Planned::kCopy:
        case Planned::kRecompute:
          for (PlannedId input : outline_.inputs_of(planned)) inputs.push_back(value(input));
          values[planned.value()] = program_.apply(node.source, inputs);
          result = {values[planned.value()]};
          break;
        case Planned::kCall: {
          const CallFrame& called = outline_.frames[node.index];
          for (size_t k = called.front.size(); k-- > 0;) {
            if (!outline_.node(called.front[k]).removed) inputs.push_back(value(called.passed[k]));
          }
          tuples[planned.value()] = run_frame(callee_of(node.index), inputs);
          if (tuples[planned.value()].size() == 1) {
            values[planned.value()] = tuples[planned.value()][0];
          }
          break;
        }
        case Planned::kOutputItem:
          values[planned.value()] =
              tuples.at(outline_.inputs_of(planned)[0].value()).at(node.index);
          break;
        case Planned::kOutput:
          result.clear();
          for (PlannedId input : outline_.inputs_of(planned)) result.push_back(value(input));
          break;
        default:
          FAIL("a kind of node that these programs cannot have");
      }
    }
    REQUIRE(argument == arguments.size());
    return result;
  }

  const Program& program_;
  const Outline& outline_;
  const std::map<uint32_t, FrameId>& callees_;  // merged calls -> the frame that is run
};

std::string dump(const Program& program, const Outline& outline, FrameId frame) {
  std::string text;
  std::map<uint32_t, size_t> position;
  for (PlannedId planned : outline.order(frame)) {
    const PlannedNode& node = outline.node(planned);
    text += std::to_string(static_cast<int>(node.kind)) + ':';
    if (node.kind == Planned::kCopy || node.kind == Planned::kState) {
      text += std::to_string(program.graph.targets[node.source.value()].value());
    }
    if (node.kind == Planned::kOutputItem) text += std::to_string(node.index);
    if (node.kind == Planned::kCall) {
      const CallFrame& called = outline.frames[node.index];
      text += std::to_string(called.path.value());
      for (size_t k = called.front.size(); k-- > 0;) {
        if (outline.node(called.front[k]).removed) continue;
        text += '%' + std::to_string(position.at(outline.resolve(called.passed[k]).value()));
      }
      // These programs compare whole trees, so that a merge never changes what is computed.
      text += '(' + dump(program, outline, FrameId(node.index)) + ')';
    }
    for (PlannedId input : outline.inputs_of(planned)) {
      text += '%' + std::to_string(position.at(outline.resolve(input).value()));
    }
    text += ';';
    position.emplace(planned.value(), position.size());
  }
  return text;
}

}  // namespace

TEST_CASE("outline: the outlined graphs compute what the flat one does") {
  for_each_seed([](Random& random) {
    Program program;
    make_program(random, program);
    const Outline result = outline(program.source(), program.strings, program.tree);
    CHECK(Runner(program, result, {}).run() == program.run_flat());
    for (const CallFrame& frame : result.frames) CHECK(frame.front.size() == frame.passed.size());
  });
}

TEST_CASE("sink: state reaches the module that owns it, and nobody passes it any more") {
  for_each_seed([](Random& random) {
    Program program;
    make_program(random, program);
    Outline result = outline(program.source(), program.strings, program.tree);
    std::vector<std::vector<StringId>> targets(program.graph.size());
    const std::vector<std::string> owners = {"", "a.", "a.b.", "d.", "d.list.0."};
    for (uint32_t i = 0; i < program.graph.size(); ++i) {
      if (program.graph.ops[i] != Op::kPlaceholder || random.percent(30)) continue;
      const std::string name = owners[random.below(owners.size())] + "w" + std::to_string(i);
      targets[i].push_back(program.strings.intern(name));
    }
    lower_state(result, program.tree, program.strings, targets);
    CHECK(Runner(program, result, {}).run() == program.run_flat());
    for (PlannedId planned : result.order(FrameId(uint32_t{0}))) {
      const PlannedNode& node = result.node(planned);
      if (node.kind == Planned::kPlaceholder) CHECK(targets[node.source.value()].empty());
    }
  });
}

TEST_CASE("merge_calls: calls of equal graphs become one, and compute the same") {
  size_t merged = 0;
  for_each_seed([&](Random& random) {
    Program program;
    make_repetition(random, program);
    Outline result = outline(program.source(), program.strings, program.tree);
    std::map<uint32_t, FrameId> callees;
    std::map<uint32_t, std::string> dumps;
    const auto text = [&](FrameId id) -> const std::string& {
      std::string& known = dumps[id.value()];
      if (known.empty()) known = dump(program, result, id);
      return known;
    };
    const Redirects redirects =
        merge_calls(result, program.tree, program.strings, [&](FrameId a, FrameId b) {
          if (text(a) != text(b)) return false;
          if (result.frames[a.value()].path == result.frames[b.value()].path) {
            callees.emplace(b.value(), a);
          }
          return true;
        });
    merged += redirects.size();
    CHECK(Runner(program, result, callees).run() == program.run_flat());
    for (const auto& [gone, stands] : redirects) {
      CHECK(program.strings.text(StringId(gone)).find('@') != std::string_view::npos);
      CHECK(without_call(program.strings.text(StringId(gone))) ==
            without_call(program.strings.text(stands)));
    }
  });
  CHECK(merged > 0);
}

TEST_CASE("arrange_modules: modules come in the order of the paths, missing ones are made") {
  Program program;
  Random random(1);
  make_program(random, program);
  Outline result = outline(program.source(), program.strings, program.tree);
  std::vector<StringId> paths;
  for (const char* path : {"", "z", "d", "d.list", "a", "a.b", "a.never"}) {
    paths.push_back(program.strings.intern(path));
  }
  arrange_modules(result, program.tree, program.strings, paths);
  std::vector<std::string> names;
  for (const auto& [name, child] : program.tree.children(result.root)) {
    names.emplace_back(without_call(program.strings.text(name)));
  }
  REQUIRE(names.size() >= 3);
  CHECK(names[0] == "z");
  CHECK(names[1] == "d");
  CHECK(program.tree.find(result.root, "a.never").valid());
}

TEST_CASE("outline: what is made where it is used is passed to nobody") {
  for_each_seed([](Random& random) {
    Program program;
    make_program(random, program);
    const Outline result = outline(program.source(), program.strings, program.tree);
    for (const PlannedNode& node : result.nodes) {
      if (!node.source.valid() || !program.remade.contains(node.source.value())) continue;
      CHECK(node.kind == Planned::kRecompute);
    }
  });
}

TEST_CASE("outline: errors name the node") {
  const auto fault_of = [](const std::function<void(Program&)>& damage) {
    Program program;
    program.graph = make_graph({{}, {0}, {1}});
    program.graph.ops = {Op::kPlaceholder, Op::kCallFunction, Op::kOutput};
    const ModuleCall root = program.scope("", 0);
    program.stacks.assign(3, program.scopes.intern({&root, 1}));
    program.custom.assign(3, 0);
    damage(program);
    try {
      outline(program.source(), program.strings, program.tree);
    } catch (const OutlineError& error) {
      CHECK(error.node == NodeId(uint32_t{1}));
      return error.fault;
    }
    FAIL("no error");
    return OutlineFault::kNoStack;
  };
  CHECK(fault_of([](Program& p) { p.stacks[1] = StackId(); }) == OutlineFault::kNoStack);
  CHECK(fault_of([](Program& p) {
          const ModuleCall lost = p.scope("lost", 0);
          p.stacks[1] = p.scopes.intern({&lost, 1});
        }) == OutlineFault::kNotBelowRoot);
  CHECK(fault_of([](Program& p) {
          const std::vector<ModuleCall> stack = {p.scope("", 0), p.scope("a", 0), p.scope("b", 0)};
          p.stacks[1] = p.scopes.intern(stack);
        }) == OutlineFault::kNotDescendant);
  CHECK(fault_of([](Program& p) {
          p.graph = make_graph({{}, {}, {}, {2}});
          p.graph.ops = {Op::kCallFunction, Op::kPlaceholder, Op::kCallFunction, Op::kOutput};
          p.stacks.push_back(p.stacks[0]);
          p.custom.push_back(0);
        }) == OutlineFault::kLatePlaceholder);
}
