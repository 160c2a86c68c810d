#include "unflatten/program.h"

#include <algorithm>
#include <charconv>
#include <map>

#include "fx/arguments.h"
#include "fx/names.h"
#include "fx/reader.h"
#include "fx/symbols.h"
#include "py/calls.h"
#include "unflatten/plan/aliases.h"
#include "unflatten/plan/module_tree.h"
#include "unflatten/plan/outline.h"

namespace fxpress::unflatten {

using core::Op;

namespace {

// Reads meta["nn_module_stack"] and meta["custom"] of all nodes.
class MetaReader {
 public:
  explicit MetaReader(FlatProgram& program) : program_(program) {}

  void run() {
    program_.root_type = Ref::borrow(Py_None);
    program_.custom_meta.emplace_back();  // number 0 means none
    for (uint32_t i = 0; i < program_.graph.size(); ++i) {
      poll_signals(i);
      program_.stacks.push_back(stack(NodeId(i)));
      program_.custom.push_back(custom(program_.original(NodeId(i))));
    }
  }

 private:
  // Returns the number of a node's custom meta. Equal values have one number.
  uint32_t custom(PyObject* node) {
    const Ref value = fx::find_meta(node, fx::names.custom);
    if (!value || !is_true(value.get())) return 0;
    for (uint32_t number = 1; number < program_.custom_meta.size(); ++number) {
      PyObject* known = program_.custom_meta[number].get();
      if (is_equal(known, value.get())) return number;
    }
    program_.custom_meta.push_back(Ref::borrow(value.get()));
    return static_cast<uint32_t>(program_.custom_meta.size() - 1);
  }

  StackId stack(NodeId id) {
    if (program_.is_placed[id.value()] != 0) return OutlineSource::kInherits;
    PyObject* node = program_.original(id);
    Ref stack = fx::find_meta(node, fx::names.nn_module_stack);
    if (!stack || stack.get() == Py_None) return {};
    if (!PyDict_Check(stack.get())) {
      raise(PyExc_ValueError, "expected a dict as nn_module_stack of node %R, found %R", node,
            stack.get());
    }
    if (PyDict_GET_SIZE(stack.get()) == 0) return {};
    if (!PyDict_CheckExact(stack.get())) stack = in_order(stack.get());
    scopes_.clear();
    bool begins_with_marker = false;
    for (DictItems items(stack.get()); items.next();) {
      if (scopes_.empty()) {
        begins_with_marker = is_equal(items.key(), fx::symbols.empty_nn_module_stack);
      }
      scopes_.push_back(known_scope(node, items.key(), items.value()));
    }
    const auto same = [](const ModuleCall& a, const ModuleCall& b) {
      return a.same_call(b) && a.key == b.key;
    };
    // Most nodes have the same stack as the node before them.
    const bool is_last =
        std::equal(scopes_.begin(), scopes_.end(), last_scopes_.begin(), last_scopes_.end(), same);
    if (!is_last && program_.is_exported) cut(id, node, stack.get());
    if (begins_with_marker && scopes_.size() == 1) return OutlineSource::kInherits;
    if (!is_last) {
      last_scopes_ = scopes_;
      last_ = program_.scopes.intern(scopes_);
    }
    return last_;
  }

  // Reads an entry of nn_module_stack. Caches it by identity, because nodes of one module share it.
  const ModuleCall& known_scope(PyObject* node, PyObject* key, PyObject* value) {
    const auto hash = reinterpret_cast<uintptr_t>(key) * 31 + reinterpret_cast<uintptr_t>(value);
    const auto [index, added] = index_.insert(hash, static_cast<uint32_t>(known_.size()));
    if (added) {
      known_.push_back({Ref::borrow(key), Ref::borrow(value), scope(node, key, value)});
    } else if (known_[index].key.get() != key || known_[index].value.get() != value) {
      other_ = scope(node, key, value);
      return other_;
    }
    return known_[index].scope;
  }

  // Copies an OrderedDict into a dict, because PyDict_Next ignores OrderedDict's order.
  static Ref in_order(PyObject* mapping) {
    const Ref items = Ref::steal(PyMapping_Items(mapping));
    Ref dict = Ref::steal(PyDict_New());
    check(PyDict_MergeFromSeq2(dict.get(), items.get(), 1));
    return dict;
  }

  ModuleCall scope(PyObject* node, PyObject* key, PyObject* value) {
    if (!PyTuple_Check(value) || PyTuple_GET_SIZE(value) != 2 || !PyUnicode_Check(key) ||
        !PyUnicode_Check(PyTuple_GET_ITEM(value, 0))) {
      raise(PyExc_ValueError, "nn_module_stack of node %R must map str to (path, type), not %R: %R",
            node, key, value);
    }
    ModuleCall scope;
    const std::string_view text = utf8(key);
    // A key without "@<number>" means the first call. If an unflattened module was exported again,
    // names of modules contain an "@" too; in this case, the key ends with the path.
    const std::string_view module = text.substr(0, text.rfind('@'));
    const std::string_view path = utf8(PyTuple_GET_ITEM(value, 0));
    const bool is_name = path.find('@') != std::string_view::npos && text.ends_with(path);
    const bool has_number = !is_name && is_call_of(text, module);
    scope.key = program_.strings.intern(has_number ? module : text);
    if (has_number && module.size() < text.size()) {
      std::from_chars(text.data() + module.size() + 1, text.data() + text.size(), scope.call);
    }
    scope.path = program_.strings.intern(path);
    PyObject* type = PyTuple_GET_ITEM(value, 1);
    if (program_.strings.text(scope.path).empty()) {
      scope.type = ModuleCall::kNoType;
      if (program_.root_type.get() == Py_None) program_.root_type = Ref::borrow(type);
    } else {
      scope.type = type_number(type);
    }
    return scope;
  }

  uint32_t type_number(PyObject* type) {
    if (type == Py_None) return ModuleCall::kNoType;
    const auto next = static_cast<uint32_t>(program_.types.size());
    const auto [number, added] =
        PyUnicode_Check(type) ? by_text_.insert(program_.strings.intern(utf8(type)).value(), next)
                              : by_identity_.insert(reinterpret_cast<uintptr_t>(type), next);
    if (added) program_.types.push_back(Ref::borrow(type));
    return number;
  }

  void cut(NodeId id, PyObject* node, PyObject* stack) {
    const size_t depth = ModuleCallStacks::valid_depth(scopes_, program_.strings);
    if (depth == scopes_.size()) return;
    if (program_.kinds[id.value()] == FlatKind::kOriginal) {
      CutStack cut{node, {}, scopes_.size() - depth};
      for (const ModuleCall& scope : scopes_) {
        cut.paths.emplace_back(without_call(program_.strings.text(scope.path)));
      }
      program_.cuts.push_back(std::move(cut));
    }
    Ref kept = Ref::steal(PyDict_New());
    DictItems items(stack);
    for (size_t i = 0; i < depth && items.next(); ++i) {
      check(PyDict_SetItem(kept.get(), items.key(), items.value()));
    }
    program_.cut_stacks[program_.origin[id.value()].value()] = std::move(kept);
    scopes_.resize(depth);
  }

  struct KnownCall {
    Ref key;           // key in nn_module_stack
    Ref value;         // value in nn_module_stack
    ModuleCall scope;  // parsed from `key` and `value`
  };

  FlatProgram& program_;
  std::vector<KnownCall> known_;  // entries of stacks that were parsed
  core::FlatMap index_;           // hash of the addresses of key and value -> index in known_
  ModuleCall other_;              // result of known_scope() if the hash collides
  std::vector<ModuleCall> last_scopes_;  // the stack that was read last, after its cut
  StackId last_;                         // id of last_scopes_
  std::vector<ModuleCall> scopes_;       // the stack of the node being read
  core::FlatMap by_text_;                // string -> number of a type
  core::FlatMap by_identity_;            // address -> number of a type
};

class ProgramReader {
 public:
  ProgramReader(FlatProgram& program, const Mutations& mutations)
      : program_(program),
        mutations_(mutations.outputs),
        may_alias_(mutations.may_alias),
        source_(program.source.graph) {}

  void run(bool drop_dead_code) {
    find_output();
    for (uint32_t i = 0; i < source_.size(); ++i) {
      if (source_.ops[i] != Op::kOutput) expect_arguments(node(NodeId(i)));
    }
    dead_ = drop_dead_code ? fx::find_dead_nodes(program_.source)
                           : std::vector<uint8_t>(source_.size(), 0);
    read_names();
    group_mutations();
    for (uint32_t i = 0; i < source_.size(); ++i) {
      if (dead_[i] == 0) add_original(NodeId(i));
    }
  }

  // Raises the errors that torch raises when it copies a node with args or kwargs of wrong types.
  static void expect_arguments(PyObject* node) {
    const Ref args = fx::node_field(node, fx::symbols.node_args);
    if (!PyTuple_Check(args.get())) fx::raise_not_copied(node, "args", "tuple", args.get());
    const Ref kwargs = fx::node_field(node, fx::symbols.node_kwargs);
    if (!PyDict_Check(kwargs.get())) fx::raise_not_copied(node, "kwargs", "dict", kwargs.get());
  }

 private:
  struct PlannedWrite {
    NodeId input;          // the placeholder that is written, a node of the source
    NodeId value;          // the value that is written, a node of the source
    StringId name;         // name of the copy_ node, in namespace_
    StringId detach_name;  // name of the detach node before the copy_; invalid: none
  };

  PyObject* node(NodeId id) const { return program_.source.nodes[id.value()]; }

  void find_output() {
    const bool ends_well = source_.size() > 0 && source_.ops.back() == Op::kOutput;
    const Ref args =
        ends_well ? fx::args_of(node(NodeId(source_.size() - 1))) : Ref::steal(PyTuple_New(0));
    if (!ends_well || PyTuple_GET_SIZE(args.get()) != 1) {
      raise(PyExc_AssertionError,
            "expected output node with op='output' and 1 arg at the end of the graph");
    }
    if (mutations_.empty()) return;
    PyObject* values = PyTuple_GET_ITEM(args.get(), 0);
    const Py_ssize_t count = PySequence_Check(values) ? PySequence_Size(values) : -1;
    if (count < static_cast<Py_ssize_t>(mutations_.size())) {
      raise(PyExc_AssertionError,
            "the graph returns fewer values than its signature mutates: expected at least %zu",
            mutations_.size());
    }
    program_.skipped_outputs = mutations_.size();
  }

  // Reads the names of nodes. Modules use the names in torch's copy of the graph, which adds
  // numbers to names of Python's builtins. The signature uses the original names.
  void read_names() {
    namespace_.begin_graph();
    for (uint32_t i = 0; i < source_.size(); ++i) {
      const Ref name = fx::node_field(node(NodeId(i)), fx::symbols.node_name);
      source_names_.push_back(program_.strings.intern(utf8(name.get())));
      const bool is_output = source_.ops[i] == Op::kOutput;
      const StringId candidate = is_output ? namespace_.candidate_for_target(fx::symbols.output)
                                           : namespace_.candidate(name.get());
      copied_names_.push_back(namespace_.table().create(candidate));
    }
    program_.node_of.resize(program_.strings.size());
  }

  StringId name_for(PyObject* target) {
    return namespace_.table().create(namespace_.candidate_for_target(target));
  }

  // Plans the writes into inputs, and names them in the order of the outputs. A write comes after
  // both the node of the new value and the last node that reads the old value or a view of it.
  void group_mutations() {
    if (mutations_.empty()) return;
    std::unordered_map<uint32_t, NodeId> placeholders;  // name -> node of the source
    for (uint32_t i = 0; i < source_.size(); ++i) {
      if (source_.ops[i] == Op::kPlaceholder) placeholders[source_names_[i].value()] = NodeId(i);
    }
    const NodeId output(source_.size() - 1);
    const auto values = source_.inputs_of(output);
    std::vector<PlannedWrite> writes;
    for (size_t i = 0; i < mutations_.size(); ++i) {
      const StringId input = program_.strings.intern(mutations_[i].input);
      const auto it = placeholders.find(input.value());
      if (it == placeholders.end() || i >= values.size()) {
        raise(PyExc_KeyError, "the signature mutates '%s', which is not an input of the graph",
              mutations_[i].input.c_str());
      }
      writes.push_back({it->second, values[i], StringId(), StringId()});
    }
    const auto aliases = find_written_aliases(writes);
    std::vector<uint32_t> last_read(source_.size(), 0);
    for (uint32_t i = 0; i < output.value(); ++i) {
      if (dead_[i] != 0) continue;
      for (NodeId def : source_.inputs_of(NodeId(i))) {
        for (NodeId written : aliases[def.value()]) last_read[written.value()] = i;
      }
    }
    for (size_t i = 0; i < writes.size(); ++i) {
      PlannedWrite& write = writes[i];
      const bool is_input = source_.ops[write.value.value()] == Op::kPlaceholder;
      if (!aliases[write.value.value()].empty() && !snapshots_.contains(write.value.value())) {
        // Save the value, because a write may change it before it is read, as in a swap of buffers.
        snapshots_.emplace(write.value.value(), name_for(fx::symbols.clone));
      }
      if (mutations_[i].target == WriteTarget::kParameter) {
        write.detach_name = name_for(fx::symbols.detach);
      }
      write.name = name_for(fx::symbols.copy_);
      const uint32_t read = last_read[write.input.value()];
      const NodeId at = is_input ? output : std::max(write.value, NodeId(read));
      writes_[at.value()].push_back(write);
    }
  }

  std::vector<std::vector<NodeId>> find_written_aliases(const std::vector<PlannedWrite>& writes) {
    std::vector<NodeId> written;
    written.reserve(writes.size());
    for (const PlannedWrite& write : writes) written.push_back(write.input);
    return find_aliases(source_, written, [&](NodeId id) {
      if (source_.ops[id.value()] == Op::kOutput) return false;
      return is_true(call(may_alias_, node(id)).get());
    });
  }

  void add_original(NodeId id) {
    const Op op = source_.ops[id.value()];
    if (op != Op::kPlaceholder) add_input_snapshots();
    if (op == Op::kOutput) add_writes(id);
    const auto inputs = source_.inputs_of(id);
    const size_t skip = op == Op::kOutput ? program_.skipped_outputs : 0;
    for (size_t k = skip; k < inputs.size(); ++k) {
      if (inputs[k] >= id) raise_not_ordered(inputs[k], id);
      program_.graph.inputs.push_back(value_[inputs[k].value()]);
    }
    value_[id.value()] = add_node(op, id, FlatKind::kOriginal, copied_names_[id.value()], false);
    program_.node_of[source_names_[id.value()].value()] = value_[id.value()];
    if (op != Op::kPlaceholder) add_snapshot(id);
    if (op != Op::kOutput) add_writes(id);
  }

  // Raises the error that torch raises while it checks its copy of the graph.
  [[noreturn]] void raise_not_ordered(NodeId input, NodeId user) const {
    raise(PyExc_RuntimeError,
          "Argument '%S' of Node '%S' was used before it has been defined! Please check that Nodes "
          "in the graph are topologically ordered",
          node(input), node(user));
  }

  void add_input_snapshots() {
    while (!snapshots_.empty() && source_.ops[snapshots_.begin()->first] == Op::kPlaceholder) {
      add_snapshot(NodeId(snapshots_.begin()->first));
    }
  }

  void add_snapshot(NodeId value) {
    const auto it = snapshots_.find(value.value());
    if (it == snapshots_.end()) return;
    program_.graph.inputs.push_back(value_[value.value()]);
    const bool is_input = source_.ops[value.value()] == Op::kPlaceholder;
    snapshot_of_[value.value()] =
        add_node(Op::kCallFunction, value, FlatKind::kSnapshot, it->second, is_input);
    snapshots_.erase(it);
  }

  void add_writes(NodeId at) {
    const auto it = writes_.find(at.value());
    if (it == writes_.end()) return;
    for (const PlannedWrite& write : it->second) {
      NodeId into = value_[write.input.value()];
      const auto snapshot = snapshot_of_.find(write.value.value());
      const NodeId value =
          snapshot == snapshot_of_.end() ? value_[write.value.value()] : snapshot->second;
      const bool is_parameter = write.detach_name.valid();
      const bool is_late = write.value != at;  // the write follows a node after write.value
      if (is_parameter) {
        program_.graph.inputs.push_back(into);
        into =
            add_node(Op::kCallFunction, write.value, FlatKind::kDetach, write.detach_name, is_late);
      }
      program_.graph.inputs.push_back(into);
      program_.graph.inputs.push_back(value);
      const NodeId written =
          add_node(Op::kCallFunction, write.value, FlatKind::kWrite, write.name, is_late);
      // Nodes after the write read its result instead of the new value. There are two exceptions:
      // late writes, and writes through detach(), which are hidden from autograd.
      if (!is_parameter && !is_late) value_[write.value.value()] = written;
    }
  }

  NodeId add_node(Op op, NodeId origin, FlatKind kind, StringId name, bool is_placed) {
    program_.graph.ops.push_back(op);
    program_.graph.input_begin.push_back(static_cast<uint32_t>(program_.graph.inputs.size()));
    program_.origin.push_back(origin);
    program_.kinds.push_back(kind);
    program_.names.push_back(Ref::borrow(namespace_.string(name)));
    program_.is_placed.push_back(is_placed ? 1 : 0);
    return NodeId(program_.graph.size() - 1);
  }

  FlatProgram& program_;
  const std::vector<Mutation>& mutations_;
  PyObject* may_alias_;  // see Mutations
  const core::Graph& source_;
  std::vector<uint8_t> dead_;           // by node of the source: whether it is dead code
  std::vector<StringId> source_names_;  // by node of the source: its name
  std::vector<StringId> copied_names_;  // by node of the source: its name in namespace_
  std::unordered_map<uint32_t, std::vector<PlannedWrite>> writes_;  // by the node before them
  std::map<uint32_t, StringId> snapshots_;            // values to save -> name of the clone
  std::unordered_map<uint32_t, NodeId> snapshot_of_;  // saved values -> node of the program
  std::vector<NodeId> value_ = std::vector<NodeId>(source_.size());  // source node -> program node
  fx::NameWriter namespace_{fx::NameWriter::Forbidden::kForNodes};   // names in torch's graph copy
};

}  // namespace

void read_program(FlatProgram& program, PyObject* graph, const Mutations& mutations,
                  bool is_exported, bool drop_dead_code) {
  program.is_exported = is_exported;
  program.source = fx::read_graph(graph, fx::InputOrder::kArguments);
  ProgramReader(program, mutations).run(drop_dead_code);
  MetaReader(program).run();
}

}  // namespace fxpress::unflatten
