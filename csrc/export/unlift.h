// The module of an exported program: its flat graph, in which state is read from attributes.
#pragma once

#include "fx/provenance.h"
#include "py/object.h"

namespace fxpress::exporting {

struct UnliftSource {
  Ref graph;            // torch.fx.Graph: the program's, which is not changed
  Ref origin;           // torch.fx.Graph that notes speak of: `graph`, or the one it was made from
  Ref taken;            // list: names that no new node may get
  Ref into;             // torch.fx.Graph without nodes, to write into
  Ref lifted;           // list, for each placeholder: the name of the state that it is, or None
  Ref outputs;          // list: the leaves of the values that the graph returns
  Ref written;          // list, for each of them: the state or input that it is written to, or None
  Ref owner;            // torch.nn.Module: has the attributes that the program's graph names
  Ref state;            // dict: name of lifted state -> value
  Ref module_class;     // of the module, derived from torch.fx.GraphModule
  bool drop_dead_code;  // leave out nodes without effect or user
  fx::ProvenanceRules created;   // notes of nodes that are copied
  fx::ProvenanceRules replaced;  // notes of attributes and of the output
};

// Writes the graph and returns its module; the code is generated when it is asked for. Raises
// torch's AssertionError and RuntimeError when the lists do not fit the graph.
Ref unlift(const UnliftSource& source);

}  // namespace fxpress::exporting
