// Creates the modules of an Outline. Graphs, children and state are created once, in final form.
#pragma once

#include <vector>

#include "fx/writer.h"
#include "unflatten/plan/arrange.h"
#include "unflatten/plan/outline.h"
#include "unflatten/program.h"
#include "unflatten/state.h"

namespace fxpress::unflatten {

// A value that becomes an attribute of a module.
struct ModuleState {
  core::StringId name;  // name of the attribute
  StateRole role;
  PyObject* value;  // borrowed from the program or its state
};

struct Signatures {
  std::vector<CallSignature> calls;  // by index of the signature
  std::vector<Ref> in_specs;         // by index of the signature
  std::vector<Ref> out_specs;        // by index of the signature
  std::vector<Ref> constants;        // by SignatureLeaf::constant
};

struct ModuleClasses {
  PyObject* interpreter;  // class of modules that run a graph
  PyObject* dispatcher;   // class of modules that run one of several modules
};

// All inputs of write_modules().
struct UnflattenPlan {
  FlatProgram& program;
  const Signatures& signatures;
  ModuleTree& tree;
  Outline& outline;
  std::vector<std::vector<ModuleState>>& state;  // state of each module
  const core::FlatMap& state_group;  // module -> the module whose state it shares, or kAbsent
  std::vector<std::pair<core::ModuleId, Ref>>& existing;  // modules that exist already
  std::vector<Dispatcher>& dispatchers;
  ModuleClasses classes;
  bool run_with_interpreter;  // RUN_WITH_INTERPRETER of new modules
};

// The modules that write_modules() has created, and the calls in their graphs.
struct WrittenModules {
  std::vector<Ref> modules;     // by module id; empty if not reachable from the root
  std::vector<Ref> call_nodes;  // by frame: the call_module node, or empty
};

// Fills `root`, a module whose __init__ has run. Creates the modules below it, except `existing`.
WrittenModules write_modules(const UnflattenPlan& plan, PyObject* root);

// Writes one graph for each CallFrame.
class FrameWriter {
 public:
  FrameWriter(const UnflattenPlan& plan, fx::NameWriter& name_writer);

  // Writes a frame's graph into `into`, a graph without nodes, or into a new graph if `into` is
  // empty. Returns the graph. Stores its call_module nodes in `call_nodes`, by frame.
  Ref write(core::FrameId frame, Ref into, std::vector<Ref>& call_nodes);

  // The targets of the placeholders of the graph that was written last.
  const std::vector<Ref>& argument_names() const { return argument_names_; }

 private:
  void name_nodes(fx::GraphWriter& writer, core::FrameId frame);
  core::StringId candidate(core::PlannedId id);
  Ref own_target(core::PlannedId id) const;

  PyObject* write_node(fx::GraphWriter& writer, core::PlannedId id);
  PyObject* write_copy(fx::GraphWriter& writer, core::PlannedId id);
  PyObject* write_added(fx::GraphWriter& writer, core::PlannedId id);
  PyObject* write_call(fx::GraphWriter& writer, core::PlannedId id);
  PyObject* write_output(fx::GraphWriter& writer, core::PlannedId id);
  PyObject* write_root_output(fx::GraphWriter& writer, core::PlannedId id);
  PyObject* write_flatten_inputs(fx::GraphWriter& writer, core::PlannedId id);
  PyObject* write_unflatten(fx::GraphWriter& writer, core::PlannedId id, bool outputs);
  PyObject* write_leaf(fx::GraphWriter& writer, core::PlannedId id, core::Op op, Ref meta);
  PyObject* write_function(fx::GraphWriter& writer, core::PlannedId id, PyObject* function,
                           Ref args, std::span<PyObject* const> inputs, Ref meta);
  PyObject* write_item(fx::GraphWriter& writer, core::PlannedId id, Ref key, Ref meta);

  Ref keyword_arguments(const std::vector<core::StringId>& keys,
                        std::span<PyObject* const> values) const;

  const PlannedNode& planned(core::PlannedId id) const { return plan_.outline.node(id); }
  const CallSignature& signature_of(const PlannedNode& node) const;
  PyObject* written(core::PlannedId id) const;
  std::vector<PyObject*> inputs_of(core::PlannedId id) const;
  Ref meta_of(core::NodeId source) const;
  Ref value_of(core::NodeId source) const;
  Ref value_meta(Ref value) const;
  void adjust_meta(PyObject* node, core::PlannedId id) const;

  const UnflattenPlan& plan_;
  fx::NameWriter& names_;
  std::vector<PyObject*> nodes_;      // by planned node: the written node; borrowed
  std::vector<core::StringId> name_;  // by planned node: its name in the graph being written
  std::vector<Ref> argument_names_;
};

}  // namespace fxpress::unflatten
