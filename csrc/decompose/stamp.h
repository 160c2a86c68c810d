// Writes the graph of a decomposed program from a plan: templates, stamped call by call.
#pragma once

#include <string>
#include <string_view>

#include "core/text_hash.h"
#include "py/object.h"

namespace fxpress::decompose {

// Gives nodes their final names, which are not taken, by the rules of torch's naming of
// placeholders. They are valid until the next call.
class Renamer {
 public:
  // A placeholder that would like to have `name`: a number at its end is a part of it.
  std::string_view placeholder(std::string_view name);

  // Another node, which keeps its name unless a placeholder has it.
  std::string_view node(std::string_view name);

 private:
  bool is_free(std::string_view name) const { return !used_.contains(std::string(name)); }
  std::string_view take(std::string_view name);
  std::string_view take_next(std::string_view base);

  core::TextMap<unsigned long> highest_;  // base -> the highest number taken
  core::TextSet used_;                    // names taken
};

// All borrowed.
struct StampRequest {
  PyObject* graph;     // an empty torch.fx.Graph
  PyObject* names;     // list of str: of the placeholders
  PyObject* metas;     // list of dict: of the placeholders, to own
  PyObject* taken;     // list of str: candidates for names of dead nodes ahead of the stamps'
  PyObject* stamps;    // list of fxpress._graphs.decompose.plan.Stamp
  PyObject* sizes;     // list of int: the number's expression of each placeholder; -1: none
  PyObject* readers;   // int: how many nodes of the first stamp read symbols from placeholders
  PyObject* roots;     // list of int: the nodes that the program returns
  PyObject* size;      // int: how many nodes the trace has, placeholders included
  PyObject* sequence;  // the number that torch gives nodes now
  PyObject* helper;    // fxpress._graphs.decompose.write.Writer
};

// Returns a list with the node of each number, None for those that are dead, and the name of the
// output.
Ref write_stamps(const StampRequest& request);

}  // namespace fxpress::decompose
