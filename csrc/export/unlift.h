// Writes the module of an exported program. In its graph, get_attr nodes replace the placeholders
// of state.
#pragma once

#include "fx/provenance.h"
#include "py/object.h"

namespace fxpress::exporting {

struct UnliftSource {
  Ref graph;            // torch.fx.Graph of the program, which is not changed
  Ref origin;           // torch.fx.Graph for notes (fx/provenance.h): `graph`, or its original
  Ref taken;            // list: names that new nodes must not get
  Ref into;             // torch.fx.Graph without nodes, to write into
  Ref lifted;           // list, by placeholder: the name of the state it passes, or None
  Ref outputs;          // list: the leaves of the values that the graph returns
  Ref written;          // list, by leaf: the state or input to which it is written, or None
  Ref owner;            // torch.nn.Module with the attributes that the program's graph names
  Ref state;            // dict: name of lifted state -> value
  Ref module_class;     // class of the module, derived from torch.fx.GraphModule
  bool drop_dead_code;  // leave out nodes without effect or user
  fx::ProvenanceRules created;   // notes of nodes that are copied
  fx::ProvenanceRules replaced;  // notes of attributes and of the output
};

// Writes the graph and returns its module; the code is generated on first access. Raises torch's
// AssertionError and RuntimeError when the lists do not fit the graph.
Ref unlift(const UnliftSource& source);

}  // namespace fxpress::exporting
