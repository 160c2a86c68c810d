// Notes that say which node another one was made from: torch.fx.traceback.NodeSource.
#pragma once

#include <utility>
#include <vector>

#include "py/object_table.h"

namespace fxpress::fx {

// How a pass writes its notes.
struct ProvenanceRules {
  Ref source_type;  // of a note
  Ref info_type;    // of what a note says about the node
  Ref attributes;   // dict: the attributes of a note, but for those of its own
  Ref keep;         // takes the notes of earlier passes over: copy.deepcopy, or list to share them
};

// What a note says about a node. Borrowed.
struct NotedNode {
  PyObject* name;
  PyObject* target;    // as text
  PyObject* graph_id;  // int
  PyObject* earlier;   // notes that the node has, or null
};

// A list with one note.
Ref note_of(const ProvenanceRules& rules, const NotedNode& node);

// A list with the note of a node that does not come from another.
Ref note_of_none(const ProvenanceRules& rules);

// The texts of targets. Most nodes share their targets, and the text of a function is slow to make.
class TargetTexts {
 public:
  // str(target), borrowed.
  PyObject* of(PyObject* target);

 private:
  ObjectMap<Ref> texts_;
};

// Makes the notes of one pass, for Python.
class Provenance {
 public:
  explicit Provenance(ProvenanceRules rules) : rules_(std::move(rules)) {}

  // A list with the note of a node with this name and target, of the graph that has this id.
  //   earlier: notes that the node has, or None.
  Ref note(PyObject* name, PyObject* target, PyObject* graph_id, PyObject* earlier);
  // A list with the note of a node that does not come from another.
  Ref note_of_none() const { return fx::note_of_none(rules_); }

 private:
  ProvenanceRules rules_;
  TargetTexts texts_;
};

}  // namespace fxpress::fx
