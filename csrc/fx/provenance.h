// Creates torch.fx.traceback.NodeSource objects, here called notes. A note records the node from
// which another node was created.
#pragma once

#include <utility>
#include <vector>

#include "py/object_table.h"

namespace fxpress::fx {

// The classes and the common content of the notes that a pass creates.
struct ProvenanceRules {
  Ref source_type;  // the class of a note
  Ref info_type;    // the class of a note's node_info
  Ref attributes;   // dict: the attributes that all notes have
  Ref keep;         // copies the notes of earlier passes: copy.deepcopy, or list to share them
};

// The node that a note records. Borrowed.
struct NotedNode {
  PyObject* name;
  PyObject* target;    // as text
  PyObject* graph_id;  // int
  PyObject* earlier;   // the notes in the node's meta, or null
};

// Returns a list with one note, for the "from_node" of a node's meta.
Ref note_of(const ProvenanceRules& rules, const NotedNode& node);

// The same for a node that was not created from another node.
Ref note_of_none(const ProvenanceRules& rules);

// Caches the texts of targets: most nodes share their targets, and str() of a function is slow.
class TargetTexts {
 public:
  // Returns str(target), borrowed.
  PyObject* of(PyObject* target);

 private:
  ObjectMap<Ref> texts_;
};

// Creates the notes of one pass, for Python.
class Provenance {
 public:
  explicit Provenance(ProvenanceRules rules) : rules_(std::move(rules)) {}

  // Returns a list with the note of a node with this name and target, of the graph with this id.
  //   earlier: the notes in the node's meta, or None.
  Ref note(PyObject* name, PyObject* target, PyObject* graph_id, PyObject* earlier);
  // The same for a node that was not created from another node.
  Ref note_of_none() const { return fx::note_of_none(rules_); }

 private:
  ProvenanceRules rules_;
  TargetTexts texts_;
};

}  // namespace fxpress::fx
