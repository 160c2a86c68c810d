// Creates torch.fx.traceback.NodeSource objects, called notes here. Each is a provenance record: it
// names the node from which another node was created.
#pragma once

#include <utility>

#include "py/object_table.h"

namespace fxpress::fx {

// The classes and the common content of all notes of one pass.
struct ProvenanceRules {
  Ref source_type;  // the class NodeSource
  Ref info_type;    // the class of NodeSource.node_info
  Ref attributes;   // dict of the attributes that all notes have
  Ref keep;         // copies a list of notes: copy.deepcopy, or `list` to share the notes
};

// The node that a note names. Its members are borrowed.
struct NotedNode {
  PyObject* name;
  PyObject* target;    // str(target)
  PyObject* graph_id;  // id() of the node's graph, as an int
  PyObject* earlier;   // the notes in the "from_node" of the node, or null
};

// Returns a list with one note, for the entry "from_node" of a node's meta.
Ref note_of(const ProvenanceRules& rules, const NotedNode& node);

// Returns a list with the note of a node that was not created from another node.
Ref note_of_none(const ProvenanceRules& rules);

// Caches str(target), because most nodes share their targets, and str() of a function is slow.
class TargetTexts {
 public:
  // Returns str(target), borrowed.
  PyObject* of(PyObject* target);

 private:
  ObjectMap<Ref> texts_;
};

// Creates the notes of one pass. Python code uses this class.
class Provenance {
 public:
  explicit Provenance(ProvenanceRules rules) : rules_(std::move(rules)) {}

  // Returns a list with one note, which names the node `name`. target: the node's target. graph_id:
  // id() of the node's graph. earlier: the notes in the node's "from_node", or None.
  Ref note(PyObject* name, PyObject* target, PyObject* graph_id, PyObject* earlier);
  // Returns a list with the note of a node that was not created from another node.
  Ref note_of_none() const { return fx::note_of_none(rules_); }

 private:
  ProvenanceRules rules_;
  TargetTexts texts_;
};

}  // namespace fxpress::fx
