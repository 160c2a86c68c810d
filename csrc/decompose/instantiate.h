// Writes the graph of a decomposed program. Replaces each call of an operator by the nodes of the
// call's template, which was traced before.
#pragma once

#include <string>
#include <string_view>

#include "core/text_hash.h"
#include "py/object.h"

namespace fxpress::decompose {

// Creates unique final names for nodes, by torch.export's rules for names of placeholders. A
// returned name is valid until the next call.
class Renamer {
 public:
  // Returns the name of a placeholder: `name` if it is free, otherwise `name` and an added number.
  std::string_view placeholder(std::string_view name);

  // Returns the name of another node: `name` if it is free, otherwise `name` with the next number.
  std::string_view node(std::string_view name);

 private:
  bool is_free(std::string_view name) const { return !used_.contains(std::string(name)); }
  std::string_view take(std::string_view name);
  std::string_view take_next(std::string_view base);

  core::TextMap<unsigned long> highest_;  // base name -> the highest number in use
  core::TextSet used_;                    // all names in use
};

// The arguments of write_instances(); all members are borrowed.
struct InstantiationRequest {
  PyObject* graph;      // an empty torch.fx.Graph
  PyObject* names;      // list of str: names of the placeholders
  PyObject* metas;      // list of dict: metas of the placeholders, which are not copied
  PyObject* taken;      // list of str: candidates of dead nodes before the first instance
  PyObject* instances;  // list of Instance of fxpress._graphs.decompose.plan
  PyObject* sizes;      // list of int: for each placeholder, the number of its expression, or -1
  PyObject* readers;    // int: how many nodes of the first instance read placeholders' symbols
  PyObject* roots;      // list of int: numbers of the nodes that the program returns
  PyObject* size;       // int: how many nodes the trace has, including placeholders
  PyObject* sequence;   // int: torch's current sequence number
  PyObject* helper;     // a Writer of fxpress._graphs.decompose.write
};

// Returns (a list of all nodes by number, with None for dead nodes; the name of the output).
Ref write_instances(const InstantiationRequest& request);

}  // namespace fxpress::decompose
