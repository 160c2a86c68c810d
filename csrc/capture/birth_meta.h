// The meta that a copy of a node has when a tracer makes it.
#pragma once

#include "fx/provenance.h"
#include "fx/symbols.h"

namespace fxpress::capture {

// The rules by which torch's tracers preserve the meta of nodes: a copy gets some of the original's
// entries, and a note of the node that it comes from.
struct BirthRules {
  Ref fields;    // tuple: the entries that are copied, in order
  Ref outer;     // dict: stands for the meta of nodes that have none
  Ref sequence;  // the number of autograd's sequence, or None: that of the original
  Ref overlay;   // dict: entries that go over all others
  Ref marker;    // str: in the stack traces of accumulated gradients
  Ref copy;      // copy.copy
  fx::ProvenanceRules provenance;
};

// Whether a dict has a true value under a key.
bool is_set(PyObject* dict, PyObject* key);

// The meta of a node; TypeError unless it is a dict.
Ref dict_of_meta(PyObject* node);

class BirthMeta {
 public:
  BirthMeta(const BirthRules& rules, PyObject* graph);

  // A new dict for the copy of a node of the graph.
  Ref of(PyObject* node);

 private:
  Ref copied(PyObject* value) const;
  Ref note(PyObject* node, PyObject* meta);
  void add_sequence(PyObject* meta, PyObject* current) const;

  const BirthRules& rules_;
  Ref graph_id_;
  fx::TargetTexts texts_;
};

}  // namespace fxpress::capture
