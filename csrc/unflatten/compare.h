// Decides whether two calls of a module have the same graph.
#pragma once

#include <string>
#include <unordered_map>
#include <vector>

#include "fx/edited.h"
#include "unflatten/write.h"

namespace fxpress::unflatten {

// Compares what torch's textual dump of a graph shows: ops, functions, attributes, arguments. And
// what it does not show: calls must be of the same modules, and those run the same graphs.
class FrameComparer {
 public:
  explicit FrameComparer(const UnflattenPlan& plan) : plan_(plan) {}

  bool same(core::FrameId a, core::FrameId b);

 private:
  void dump(core::FrameId frame);
  void dump_node(core::PlannedId id, std::string& out);
  void dump_arguments(PyObject* object, fx::InputCursor<core::PlannedId>& inputs, std::string& out);
  void dump_text(PyObject* object, std::string& out);
  void dump_inputs(core::PlannedId id, std::string& out);

  const UnflattenPlan& plan_;
  std::vector<uint32_t> graph_of_;  // by frame: number of its graph, equal for equal graphs
  std::unordered_map<std::string, uint32_t> graphs_;  // dump of a graph -> its number
  std::vector<uint32_t> position_;                    // by planned node: its place in its graph
};

}  // namespace fxpress::unflatten
