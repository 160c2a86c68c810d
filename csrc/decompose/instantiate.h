// Writes the graph of a decomposed program: for each call, the nodes that a template describes.
#pragma once

#include <string>
#include <string_view>

#include "core/text_hash.h"
#include "py/object.h"

namespace fxpress::decompose {

// Finds unused final names for nodes, by the rules by which torch names placeholders. A returned
// name is valid until the next call.
class Renamer {
 public:
  // Returns the name of a placeholder that prefers `name`. A number at the end of `name` is not
  // replaced.
  std::string_view placeholder(std::string_view name);

  // Returns the name of a node that is not a placeholder: `name` unless it is taken.
  std::string_view node(std::string_view name);

 private:
  bool is_free(std::string_view name) const { return !used_.contains(std::string(name)); }
  std::string_view take(std::string_view name);
  std::string_view take_next(std::string_view base);

  core::TextMap<unsigned long> highest_;  // base name -> the highest number in use
  core::TextSet used_;                    // names that are in use
};

// The arguments of write_instances(); all members are borrowed.
struct InstantiationRequest {
  PyObject* graph;      // an empty torch.fx.Graph
  PyObject* names;      // list of str: names of the placeholders
  PyObject* metas;      // list of dict: metas of the placeholders, which take the dicts over
  PyObject* taken;      // list of str: candidates for names of dead nodes before the instances
  PyObject* instances;  // list of fxpress._graphs.decompose.plan.Instance
  PyObject* sizes;      // list of int: by placeholder, the number of its expression; -1: none
  PyObject* readers;   // int: number of nodes of the first instance that read placeholders' symbols
  PyObject* roots;     // list of int: the nodes that the program returns
  PyObject* size;      // int: number of nodes of the trace, including placeholders
  PyObject* sequence;  // torch's current sequence number
  PyObject* helper;    // fxpress._graphs.decompose.write.Writer
};

// Returns a list with the node of each number, None for dead nodes, and the name of the output.
Ref write_instances(const InstantiationRequest& request);

}  // namespace fxpress::decompose
