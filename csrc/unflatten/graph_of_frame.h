// The graph of one call of a module.
#pragma once

#include "fx/writer.h"
#include "unflatten/write.h"

namespace fxpress::unflatten {

class FrameWriter {
 public:
  FrameWriter(const UnflattenPlan& plan, fx::NameWriter& name_writer);

  // A new graph, or `into` (one without nodes). `call_nodes` (by frame) receives the calls in it.
  Ref write(core::FrameId frame, Ref into, std::vector<Ref>& call_nodes);

  // Targets of the placeholders of the graph written last.
  const std::vector<Ref>& argument_names() const { return argument_names_; }

 private:
  void name_nodes(fx::GraphWriter& writer, core::FrameId frame);
  core::StringId candidate(core::PlannedId id);
  Ref own_target(core::PlannedId id) const;

  PyObject* write_node(fx::GraphWriter& writer, core::PlannedId id);
  PyObject* write_copy(fx::GraphWriter& writer, core::PlannedId id);
  PyObject* write_write(fx::GraphWriter& writer, core::PlannedId id);
  PyObject* write_call(fx::GraphWriter& writer, core::PlannedId id);
  PyObject* write_output(fx::GraphWriter& writer, core::PlannedId id);
  PyObject* write_root_output(fx::GraphWriter& writer, core::PlannedId id);
  PyObject* write_flatten_inputs(fx::GraphWriter& writer, core::PlannedId id);
  PyObject* write_unflatten(fx::GraphWriter& writer, core::PlannedId id, bool outputs);
  PyObject* write_leaf(fx::GraphWriter& writer, core::PlannedId id, core::Op op, Ref meta);
  PyObject* write_function(fx::GraphWriter& writer, core::PlannedId id, PyObject* function,
                           Ref args, std::span<PyObject* const> inputs, Ref meta);
  PyObject* write_item(fx::GraphWriter& writer, core::PlannedId id, Ref key, Ref meta);

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
  std::vector<PyObject*> nodes_;      // by planned node; borrowed from their graphs
  std::vector<core::StringId> name_;  // by planned node, of the graph being written
  std::vector<Ref> argument_names_;
};

}  // namespace fxpress::unflatten
