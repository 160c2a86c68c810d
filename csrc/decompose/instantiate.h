// Writes the graph of a decomposed program: for each call, the nodes that a template describes.
#pragma once

#include <string>
#include <string_view>

#include "core/text_hash.h"
#include "py/object.h"

namespace fxpress::decompose {

// Finds unused final names for nodes, by the rules of torch's naming of placeholders. A returned
// name is valid until the next call.
class Renamer {
 public:
  // Returns the name of a placeholder that prefers `name`. A number at the end of `name` is not
  // replaced.
  std::string_view placeholder(std::string_view name);

  // Returns the name of another node: `name` unless it is taken.
  std::string_view node(std::string_view name);

 private:
  bool is_free(std::string_view name) const { return !used_.contains(std::string(name)); }
  std::string_view take(std::string_view name);
  std::string_view take_next(std::string_view base);

  core::TextMap<unsigned long> highest_;  // base -> the highest number taken
  core::TextSet used_;                    // names taken
};

// All members are borrowed.
struct InstantiationRequest {
  PyObject* graph;      // an empty torch.fx.Graph
  PyObject* names;      // list of str: of the placeholders
  PyObject* metas;      // list of dict: of the placeholders, which take them over
  PyObject* taken;      // list of str: candidates for names of dead nodes before the instances
  PyObject* instances;  // list of fxpress._graphs.decompose.plan.Instance
  PyObject* sizes;      // list of int: by placeholder, the number of its expression; -1: none
  PyObject* readers;    // int: how many nodes of the first instance read symbols of placeholders
  PyObject* roots;      // list of int: the nodes that the program returns
  PyObject* size;       // int: how many nodes the trace has, including placeholders
  PyObject* sequence;   // torch's current sequence number
  PyObject* helper;     // fxpress._graphs.decompose.write.Writer
};

// Returns a list with the node of each number, None for dead nodes, and the name of the output.
Ref write_instances(const InstantiationRequest& request);

}  // namespace fxpress::decompose
