// Writes the graph of a decomposed program from a plan: templates, stamped call by call.
#pragma once

#include "py/object.h"

namespace fxpress::decompose {

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
