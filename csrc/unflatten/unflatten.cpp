#include "unflatten/unflatten.h"

#include <pybind11/stl.h>

#include <string>
#include <unordered_map>
#include <vector>

#include "core/check.h"
#include "core/text_hash.h"
#include "fx/arguments.h"
#include "fx/symbols.h"
#include "py/calls.h"
#include "py/gc_pause.h"

namespace fxpress::unflatten {

namespace py = pybind11;

using core::Op;

namespace {

void append_number(std::string& out, uint64_t number) {
  out += std::to_string(number);
  out += ' ';
}

// Decides whether two calls of a module have the same graph. Compares what torch's textual dump of
// a graph shows (ops, functions, attributes, arguments), and the modules and graphs of the calls in
// the graph.
class FrameComparer {
 public:
  explicit FrameComparer(const UnflattenPlan& plan) : plan_(plan) {}

  bool same(FrameId a, FrameId b) {
    if (graph_of_.empty()) {
      graph_of_.resize(plan_.outline.frames.size());
      position_.resize(plan_.outline.nodes.size());
      // Dump callees first. Their frames follow their callers' frames, so iterate backwards.
      for (size_t i = graph_of_.size(); i-- > 1;) dump(FrameId(i));
    }
    return graph_of_[a.value()] == graph_of_[b.value()];
  }

 private:
  void dump(FrameId frame) {
    std::string text;
    uint32_t position = 0;
    for (PlannedId id : plan_.outline.order(frame)) {
      dump_node(id, text);
      text += '\n';
      position_[id.value()] = position++;
    }
    const auto number = static_cast<uint32_t>(graphs_.size());
    graph_of_[frame.value()] = graphs_.emplace(std::move(text), number).first->second;
  }

  void dump_node(PlannedId id, std::string& out) {
    const PlannedNode& node = plan_.outline.node(id);
    const bool is_original = (node.kind == Planned::kCopy || node.kind == Planned::kRecompute ||
                              node.kind == Planned::kPlaceholder) &&
                             plan_.program.kinds[node.source.value()] == FlatKind::kOriginal;
    if (!is_original) {
      const Planned kind = node.kind == Planned::kInput ? Planned::kArgument : node.kind;
      out += "planned ";
      append_number(out, static_cast<uint64_t>(kind));
      if (kind == Planned::kCopy) {
        append_number(out, static_cast<uint64_t>(plan_.program.kinds[node.source.value()]));
      }
      if (kind == Planned::kState) append_number(out, node.path.value());
      if (kind == Planned::kCall) {
        const CallFrame& callee = plan_.outline.frames[node.index];
        append_number(out, callee.key.value());
        append_number(out, graph_of_[node.index]);
        for (size_t k = callee.front.size(); k-- > 0;) {
          if (plan_.outline.node(callee.front[k]).removed) continue;
          append_number(out, position_[plan_.outline.resolve(callee.passed[k]).value()]);
        }
      } else if (kind != Planned::kArgument && kind != Planned::kUnflattenInputs &&
                 kind != Planned::kUnflattenOutputs) {
        append_number(out, node.index);
      }
      if (kind == Planned::kUnflattenInputs || kind == Planned::kUnflattenOutputs) {
        const auto& signature = plan_.signatures.calls[node.index];
        for (const auto& leaf :
             kind == Planned::kUnflattenInputs ? signature.inputs : signature.outputs) {
          if (!leaf.constant.valid()) continue;
          dump_text(plan_.signatures.constants[leaf.constant.value()].get(), out);
        }
      }
      dump_inputs(id, out);
      return;
    }
    const Op op = plan_.program.graph.ops[node.source.value()];
    append_number(out, static_cast<uint64_t>(op));
    if (op == Op::kPlaceholder) return;
    if (op == Op::kCallFunction) {
      append_number(out, reinterpret_cast<uintptr_t>(plan_.program.target(node.source)));
    } else if (op == Op::kGetAttr) {
      dump_text(plan_.program.target(node.source), out);
    }
    fx::InputCursor inputs(plan_.outline.inputs_of(id));
    PyObject* original = plan_.program.original(node.source);
    dump_arguments(fx::args_of(original).get(), inputs, out);
    dump_arguments(fx::kwargs_of(original).get(), inputs, out);
    inputs.finish();
  }

  void dump_inputs(PlannedId id, std::string& out) {
    for (PlannedId input : plan_.outline.inputs_of(id)) {
      out += '%';
      if (input.valid()) append_number(out, position_[plan_.outline.resolve(input).value()]);
    }
  }

  void dump_arguments(PyObject* object, fx::InputCursor<PlannedId>& inputs, std::string& out) {
    // Owns a container, because str() runs Python code that may remove it from its parent.
    struct DumpedContainer {
      ArgCursor cursor;
      Ref held;  // the container
    };
    std::vector<DumpedContainer> stack;
    std::vector<Ref> known;  // recorded containers, owned so that no address is reused
    fx::ArgTrail trail;
    const auto enter = [&](PyObject* item) {
      if (fx::is_node(item)) {
        out += '%';
        append_number(out, position_[plan_.outline.resolve(inputs.next()).value()]);
        return;
      }
      const ArgKind kind = arg_kind(item);
      if (kind == ArgKind::kLeaf) {
        dump_text(item, out);
        return;
      }
      const auto at = [&](size_t i) { return stack[i].cursor.container; };
      if (!trail.enter(item, stack.size(), at)) {
        out += '^';  // visited before
        return;
      }
      out += '(';
      append_number(out, static_cast<uint64_t>(kind));
      stack.push_back({{item, kind}, Ref::borrow(item)});
    };
    enter(object);
    while (!stack.empty()) {
      PyObject* key = nullptr;
      const Ref child = Ref::borrow(stack.back().cursor.next(&key));
      if (!child) {
        out += ')';
        trail.leave(stack.back().cursor.container);
        if (trail.is_recording()) known.push_back(std::move(stack.back().held));
        stack.pop_back();
        continue;
      }
      if (key != nullptr) dump_text(Ref::borrow(key).get(), out);
      enter(child.get());
    }
  }

  static void dump_text(PyObject* object, std::string& out) {
    const Ref text = Ref::steal(PyObject_Str(object));
    const std::string_view characters = utf8(text.get());
    append_number(out, characters.size());  // keeps the dump unambiguous
    out += PyUnicode_Check(object) != 0 ? '"' : ' ';
    out += characters;
  }

  const UnflattenPlan& plan_;
  std::vector<uint32_t> graph_of_;  // by frame: number of its graph, equal for equal graphs
  core::TextMap<uint32_t> graphs_;  // dump of a graph -> its number
  std::vector<uint32_t> position_;  // by planned node: its position in its graph
};

class Unflattener {
 public:
  Unflattener(const UnflattenSource& source, bool is_exported)
      : source_(source), tree_(program_.strings) {
    read_program(program_, source.graph, {source.mutations, source.may_alias}, is_exported,
                 source.drop_dead_code);
    read_signatures();
  }

  FlatProgram& program() { return program_; }
  Outline& result() { return outline_; }
  core::StringPool& strings() { return program_.strings; }

  void outline() {
    const auto is_remade = [&](NodeId node) { return is_inner_tensor(node); };
    adopt_stacks(program_.graph, program_.stacks, is_remade);
    const OutlineSource source{
        program_.graph,
        program_.stacks,
        program_.scopes,
        program_.custom,
        signatures_.calls,
        signature_of_,
        [&](NodeId node) { return is_recomputable(node); },
        [&](NodeId node) { return is_mutation(node); },
        is_remade,
    };
    try {
      outline_ = unflatten::outline(source, strings(), tree_);
    } catch (const OutlineError& error) {
      rethrow(error);
    }
  }

  // Assigns the value of each get_attr node to the module whose graph has the node. The body graph
  // of a higher-order operator becomes a child of this module.
  void move_attributes() {
    for (const CallFrame& frame : outline_.frames) {
      for (NodeId node : frame.get_attrs) {
        PyObject* name = program_.target(node);
        const Ref value = get_attr(source_.owner, name);
        if (is_instance(value.get(), fx::symbols.module_type)) {
          const StringId id = strings().intern(utf8(name));
          const ModuleId known = tree_.child(frame.module, id);
          const ModuleId body = known.valid() ? known : tree_.add();
          tree_.set_child(frame.module, id, body);
          existing_.emplace_back(body, Ref::borrow(value.get()));
        } else {
          state_of(frame.module)
              .push_back({strings().intern(utf8(name)), StateRole::kConstant, value.get()});
          attributes_.push_back(Ref::borrow(value.get()));
        }
      }
    }
  }

  void place_state() {
    if (source_.state == nullptr) return;
    std::vector<std::string_view> names;
    for (const NamedState& state : source_.state->assigned()) {
      const std::string_view name = source_.state->strings().text(state.name);
      if (name.find('@') != std::string_view::npos) names.push_back(name);
    }
    StatePlaces places(tree_, strings(), outline_.root, names);
    const std::vector<ModuleId>* modules = &places.modules_at("");
    std::string_view last_path;
    for (const NamedState& state : source_.state->assigned()) {
      const std::string_view name = source_.state->strings().text(state.name);
      const size_t dot = name.rfind('.');
      const bool is_nested = dot != std::string_view::npos;
      const std::string_view path = is_nested ? name.substr(0, dot) : std::string_view();
      if (path != last_path) modules = &places.modules_at(path);
      last_path = path;
      const StringId field = strings().intern(is_nested ? name.substr(dot + 1) : name);
      for (ModuleId module : *modules) {
        if (modules->size() > 1) state_group_.insert(module.value(), modules->front().value());
        state_of(module).push_back({field, state.role, state.value});
      }
    }
  }

  void sink() {
    std::vector<std::vector<StringId>> targets(program_.graph.size());
    if (source_.state != nullptr) {
      const ProgramState& state = *source_.state;
      const auto id = [&](StringId name) { return strings().intern(state.strings().text(name)); };
      for (const auto& [placeholder, group] : state.placeholders()) {
        const NodeId node = program_.node_named(id(placeholder));
        if (!node.valid()) continue;
        std::vector<StringId>& names = targets[node.value()];
        for (StringId name : state.names_of(group)) names.push_back(id(name));
      }
    }
    lower_state(outline_, tree_, strings(), targets);
  }

  void arrange() {
    UnflattenPlan plan = this->plan();
    FrameComparer comparer(plan);
    const auto same = [&](FrameId a, FrameId b) { return comparer.same(a, b); };
    merge_displaced(outline_, tree_, strings(), same);
    const Redirects redirects = merge_calls(outline_, tree_, strings(), same);
    std::vector<StringId> preserved;
    for (const std::string& name : source_.with_signature) {
      if (!name.empty()) preserved.push_back(strings().intern(name));
    }
    dispatchers_ = dispatch_calls(outline_, tree_, strings(), preserved, redirects);
    std::vector<StringId> paths;
    for (const std::string& path : source_.paths) {
      const StringId id = strings().intern(path);
      if (!redirects.contains(id.value()) && path.find('@') == std::string::npos) {
        paths.push_back(id);
      }
    }
    arrange_modules(outline_, tree_, strings(), paths);
  }

  UnflattenPlan plan() {
    return {program_,     signatures_, tree_,        outline_,        state_,
            state_group_, existing_,   dispatchers_, source_.classes, source_.run_with_interpreter};
  }

 private:
  std::vector<ModuleState>& state_of(ModuleId module) {
    if (state_.size() <= module.value()) state_.resize(tree_.size());
    return state_[module.value()];
  }

  // In Python, a signature is (call name, inputs, outputs, number of positional arguments,
  // keywords, in_spec, out_spec).
  void read_signatures() {
    for (const py::handle source : py::handle(source_.signatures)) {
      const auto fields = source.cast<py::tuple>();
      CallSignature call;
      call.inputs = read_leaves(fields[1]);
      call.outputs = read_leaves(fields[2]);
      call.positional = fields[3].cast<uint32_t>();
      for (const py::handle keyword : fields[4]) call.keywords.push_back(intern(keyword));
      signature_of_[intern(fields[0]).value()] = static_cast<uint32_t>(signatures_.calls.size());
      signatures_.calls.push_back(std::move(call));
      signatures_.in_specs.push_back(borrow(fields[5]));
      signatures_.out_specs.push_back(borrow(fields[6]));
    }
  }

  // In Python, a leaf is (name, None) or ("", (constant,)).
  std::vector<SignatureLeaf> read_leaves(const py::handle& sources) {
    std::vector<SignatureLeaf> leaves;
    for (const py::handle source : sources) {
      const auto fields = source.cast<py::tuple>();
      SignatureLeaf leaf;
      if (!fields[1].is_none()) {
        leaf.constant = core::ObjectId(signatures_.constants.size());
        signatures_.constants.push_back(borrow(fields[1].cast<py::tuple>()[0]));
      } else {
        leaf.name = intern(fields[0]);
        leaf.node = program_.node_named(leaf.name);
      }
      leaves.push_back(leaf);
    }
    return leaves;
  }

  StringId intern(const py::handle& text) { return strings().intern(text.cast<std::string>()); }
  static Ref borrow(const py::handle& object) { return Ref::borrow(object.ptr()); }

  bool is_recomputable(NodeId node) const {
    PyObject* target = program_.target(node);
    if (program_.kinds[node.value()] != FlatKind::kOriginal) return false;
    if (contains(fx::symbols.recomputable_targets, target)) return true;
    const Ref module = find_attr(target, fx::names.module_attribute);
    return module && PyUnicode_Check(module.get()) &&
           PyUnicode_CompareWithASCIIString(module.get(), "_operator") == 0;
  }

  // Whether a node gets an inner tensor of a weight that is a tensor subclass. torch.export adds
  // these nodes outside of all modules.
  bool is_inner_tensor(NodeId node) const {
    if (program_.kinds[node.value()] != FlatKind::kOriginal) return false;
    return contains(source_.parts, program_.target(node));
  }

  bool is_mutation(NodeId node) const {
    if (program_.kinds[node.value()] == FlatKind::kWrite) return true;
    PyObject* target = program_.target(node);
    if (!is_instance(target, fx::symbols.op_overload_type)) return false;
    const Ref schema = get_attr(target, fx::names.schema);
    return get_attr(schema.get(), fx::names.is_mutable).get() == Py_True;
  }

  [[noreturn]] void rethrow(const OutlineError& error) {
    PyObject* node = error.node.valid() ? program_.original(error.node) : Py_None;
    switch (error.fault) {
      case OutlineFault::kNoStack:
        raise(PyExc_RuntimeError,
              "Unable to find nn_module_stack for node %R: without it, unflatten finds the module "
              "of a node only if one module contains all users of the node. Passes that add nodes "
              "must copy meta['nn_module_stack']",
              node);
      case OutlineFault::kNotBelowRoot:
        raise(PyExc_RuntimeError,
              "nn_module_stack of node %R does not begin with the root module: %R", node,
              stack_of(node).get());
      case OutlineFault::kLatePlaceholder:
        raise(PyExc_AssertionError,
              "unexpected placeholder node %R after the first node of the body", node);
      case OutlineFault::kNotDescendant:
        raise(
            PyExc_RuntimeError,
            "%s This is currently unsupported. (at node %R; attach the child module to its parent "
            "directly)",
            error.what(), node);
      case OutlineFault::kCannotPass:
        raise(PyExc_RuntimeError,
              "Could not run remap_input() on node %R: module '%s' needs its value, which the "
              "preserved signature of the module does not pass",
              node, error.what());
      case OutlineFault::kMissingOutput:
        raise(PyExc_RuntimeError,
              "Could not find output node %R: the preserved signature of module '%s' returns its "
              "value, which the module neither computes nor receives",
              node, error.what());
    }
    FXPRESS_CHECK(false, "unknown type of error");
  }

  static Ref stack_of(PyObject* node) {
    Ref stack = fx::find_meta(node, fx::names.nn_module_stack);
    return stack ? std::move(stack) : Ref::borrow(Py_None);
  }

  const UnflattenSource& source_;
  FlatProgram program_;
  ModuleTree tree_;
  Outline outline_;
  Signatures signatures_;
  std::unordered_map<uint32_t, uint32_t> signature_of_;  // call name -> index in signatures_
  std::vector<std::vector<ModuleState>> state_;          // state of each module
  std::vector<Ref> attributes_;                          // values that state_ borrows
  core::FlatMap state_group_;                            // see UnflattenPlan::state_group
  std::vector<std::pair<ModuleId, Ref>> existing_;       // bodies of higher-order operators
  std::vector<Dispatcher> dispatchers_;
};

}  // namespace

py::tuple unflatten(const UnflattenSource& source, PyObject* root) {
  Unflattener unflattener(source, true);
  unflattener.outline();
  unflattener.move_attributes();
  unflattener.place_state();
  unflattener.sink();
  unflattener.arrange();
  const GcPause pause;
  write_modules(unflattener.plan(), root);
  const FlatProgram& program = unflattener.program();
  py::list cuts;
  for (const CutStack& cut : program.cuts) {
    cuts.append(py::make_tuple(py::handle(cut.node), cut.paths, cut.dropped));
  }
  return py::make_tuple(py::handle(program.root_type.get()), cuts);
}

py::tuple outline_submodules(const UnflattenSource& source, PyObject* root) {
  Unflattener unflattener(source, false);
  unflattener.outline();
  const GcPause pause;
  const WrittenModules written = write_modules(unflattener.plan(), root);
  const Outline& outline = unflattener.result();
  const auto text = [&](StringId id) { return py::str(unflattener.strings().text(id)); };
  const auto object = [](const Ref& known) { return py::handle(known ? known.get() : Py_None); };
  const auto module = [&](ModuleId id) { return object(written.modules[id.value()]); };
  py::list calls;
  for (size_t i = 0; i < outline.keys.size(); ++i) {
    for (FrameId id : outline.calls[i]) {
      const CallFrame& frame = outline.frames[id.value()];
      const CallFrame& caller = outline.frames[frame.parent.value()];
      calls.append(py::make_tuple(text(outline.keys[i]), text(caller.path), module(caller.module),
                                  object(written.call_nodes[id.value()]), text(frame.path),
                                  frame.call_index + 1, module(frame.module)));
    }
  }
  py::list attributes;
  for (const CallFrame& frame : outline.frames) {
    for (NodeId node : frame.get_attrs) {
      attributes.append(py::make_tuple(text(frame.call_name),
                                       py::handle(unflattener.program().target(node)),
                                       module(frame.module)));
    }
  }
  return py::make_tuple(calls, attributes);
}

}  // namespace fxpress::unflatten
