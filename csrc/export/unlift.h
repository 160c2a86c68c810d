// Writes the module of an exported program. In its graph, get_attr nodes replace the placeholders
// for parameters, buffers and constants ("state").
#pragma once

#include "fx/provenance.h"
#include "py/object.h"

namespace fxpress::exporting {

struct UnliftSource {
  Ref graph;            // torch.fx.Graph of the program; not modified
  Ref origin;           // Graph with the nodes that provenance records name; may be `graph` itself
  Ref taken;            // list: names that new nodes must not get
  Ref into;             // empty torch.fx.Graph to write into
  Ref lifted;           // list, one item per placeholder: the name of its state, or None
  Ref outputs;          // list of the leaves of the graph's output
  Ref written;          // list, one item per leaf: name of the state or input to write to, or None
  Ref owner;            // torch.nn.Module with the attributes that get_attr nodes use
  Ref state;            // dict from names of state to values
  Ref module_class;     // class of the new module, derived from torch.fx.GraphModule
  bool drop_dead_code;  // whether to omit nodes without users and side effects
  fx::ProvenanceRules created;   // for the provenance records of copied nodes
  fx::ProvenanceRules replaced;  // for the provenance records of attributes and the output
};

// Writes the graph, and returns its module, which generates code on first access. Raises
// AssertionError or RuntimeError, like torch, if the lists do not match the graph.
Ref unlift(const UnliftSource& source);

}  // namespace fxpress::exporting
