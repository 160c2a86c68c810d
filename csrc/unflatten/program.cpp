#include "unflatten/program.h"

#include <algorithm>
#include <map>

#include "fx/arguments.h"
#include "fx/dead_nodes.h"
#include "fx/names.h"
#include "fx/symbols.h"
#include "unflatten/meta.h"
#include "unflatten/plan/aliases.h"
#include "unflatten/plan/module_tree.h"

namespace fxpress::unflatten {

using core::NodeId;
using core::Op;
using core::StringId;

namespace {

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
    if (drop_dead_code) {
      dead_ = fx::find_dead_nodes(program_.source);
    } else {
      dead_.assign(source_.size(), 0);
    }
    read_names();
    group_mutations();
    for (uint32_t i = 0; i < source_.size(); ++i) {
      if (dead_[i] == 0) add_original(NodeId(i));
    }
  }

  // Raises the errors that torch raises for such arguments while it copies the graph.
  static void expect_arguments(PyObject* node) {
    const Ref args = fx::node_field(node, fx::symbols.node_args);
    if (!PyTuple_Check(args.get())) fx::raise_not_copied(node, "args", "tuple", args.get());
    const Ref kwargs = fx::node_field(node, fx::symbols.node_kwargs);
    if (!PyDict_Check(kwargs.get())) fx::raise_not_copied(node, "kwargs", "dict", kwargs.get());
  }

 private:
  struct Write {
    NodeId input;          // placeholder of the source
    NodeId value;          // of the source
    StringId name;         // of the copy_, in namespace_
    StringId detach_name;  // of the detach before it; invalid: none
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
      raise(PyExc_AssertionError, "the graph returns fewer values than its signature mutates");
    }
    program_.skipped_outputs = mutations_.size();
  }

  // torch works on a copy of the graph, and copying renames nodes: those that are called like a
  // builtin get a number. The names of the copy end up in the modules; the signature knows the
  // original ones.
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

  // A write is named in the order of the outputs. It happens when its value is known and the old
  // value was read for the last time, through views of it as well.
  void group_mutations() {
    if (mutations_.empty()) return;
    std::unordered_map<uint32_t, NodeId> placeholders;  // name -> node of the source
    for (uint32_t i = 0; i < source_.size(); ++i) {
      if (source_.ops[i] == Op::kPlaceholder) placeholders[source_names_[i].value()] = NodeId(i);
    }
    const NodeId output(source_.size() - 1);
    const auto values = source_.inputs_of(output);
    std::vector<Write> writes;
    for (size_t i = 0; i < mutations_.size(); ++i) {
      const StringId input = program_.strings.intern(mutations_[i].input);
      const auto it = placeholders.find(input.value());
      if (it == placeholders.end() || i >= values.size()) {
        raise(PyExc_KeyError, "'%s', which the signature mutates, is no input of the graph",
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
      Write& write = writes[i];
      const bool is_input = source_.ops[write.value.value()] == Op::kPlaceholder;
      if (!aliases[write.value.value()].empty() && !snapshots_.contains(write.value.value())) {
        // The value may change with a write, as when buffers are swapped.
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

  std::vector<std::vector<NodeId>> find_written_aliases(const std::vector<Write>& writes) {
    std::vector<NodeId> written;
    written.reserve(writes.size());
    for (const Write& write : writes) written.push_back(write.input);
    return find_aliases(source_, written, [&](NodeId id) {
      if (source_.ops[id.value()] == Op::kOutput) return false;
      const Ref answer = Ref::steal(PyObject_CallOneArg(may_alias_, node(id)));
      const int may = PyObject_IsTrue(answer.get());
      check(may);
      return may == 1;
    });
  }

  void add_original(NodeId id) {
    const Op op = source_.ops[id.value()];
    if (op != Op::kPlaceholder) add_input_snapshots();
    if (op == Op::kOutput) add_writes(id);
    const auto inputs = source_.inputs_of(id);
    const size_t skip = op == Op::kOutput ? program_.skipped_outputs : 0;
    for (size_t k = skip; k < inputs.size(); ++k) {
      program_.graph.inputs.push_back(value_[inputs[k].value()]);
    }
    value_[id.value()] = add_node(op, id, FlatKind::kOriginal, copied_names_[id.value()], false);
    program_.node_of[source_names_[id.value()].value()] = value_[id.value()];
    if (op != Op::kPlaceholder) add_snapshot(id);
    if (op != Op::kOutput) add_writes(id);
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
    for (const Write& write : it->second) {
      NodeId into = value_[write.input.value()];
      const auto snapshot = snapshot_of_.find(write.value.value());
      const NodeId value =
          snapshot == snapshot_of_.end() ? value_[write.value.value()] : snapshot->second;
      const bool is_parameter = write.detach_name.valid();
      const bool is_late = write.value != at;
      if (is_parameter) {
        program_.graph.inputs.push_back(into);
        into =
            add_node(Op::kCallFunction, write.value, FlatKind::kDetach, write.detach_name, is_late);
      }
      program_.graph.inputs.push_back(into);
      program_.graph.inputs.push_back(value);
      const NodeId written =
          add_node(Op::kCallFunction, write.value, FlatKind::kWrite, write.name, is_late);
      // Later users take the written buffer. Not a parameter: its write is hidden from autograd.
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
  std::vector<uint8_t> dead_;                                // by node of the source
  std::vector<StringId> source_names_;                       // by node of the source
  std::vector<StringId> copied_names_;                       // likewise, in namespace_
  std::unordered_map<uint32_t, std::vector<Write>> writes_;  // node of the source -> behind it
  std::map<uint32_t, StringId> snapshots_;                   // values to save -> name of the clone
  std::unordered_map<uint32_t, NodeId> snapshot_of_;         // saved values -> node of the program
  std::vector<NodeId> value_ = std::vector<NodeId>(source_.size());  // source -> program
  fx::NameWriter namespace_{fx::NameWriter::Forbidden::kForNodes};   // of torch's copy of the graph
};

}  // namespace

void read_program(FlatProgram& program, PyObject* graph, const Mutations& mutations,
                  bool is_exported, bool drop_dead_code) {
  program.is_exported = is_exported;
  program.source = fx::read_graph(graph, fx::InputOrder::kArguments);
  ProgramReader(program, mutations).run(drop_dead_code);
  read_meta(program);
}

}  // namespace fxpress::unflatten
