// The meta that a copy of a node has when a tracer makes it.
#pragma once

#include <vector>

#include "core/flat_map.h"
#include "fx/symbols.h"

namespace fxpress::capture {

// The rules by which torch's tracers preserve the meta of nodes: a copy gets some of the original's
// entries, and a note of the node that it comes from.
struct BirthRules {
  Ref fields;      // tuple: the entries that are copied, in order
  Ref outer;       // dict: stands for the meta of nodes that have none
  Ref sequence;    // the number of autograd's sequence, or None: that of the original
  Ref overlay;     // dict: entries that go over all others
  Ref marker;      // str: in the stack traces of accumulated gradients
  Ref provenance;  // dict: the attributes of a NodeSource, but for those of its own
  Ref source_type;
  Ref info_type;  // of what a NodeSource says about the node
  Ref copy;       // copy.copy
  Ref deepcopy;   // copies the records of earlier passes: copy.deepcopy, or list to share them
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
  Ref source(PyObject* node, PyObject* meta);
  void add_sequence(PyObject* meta, PyObject* current) const;
  PyObject* text_of(PyObject* target);

  const BirthRules& rules_;
  Ref graph_id_;
  core::FlatMap text_places_;  // address of a target -> its text
  std::vector<Ref> texts_;
};

}  // namespace fxpress::capture
