// Rewrites the graph that Dynamo captured. The new graph's inputs and outputs are the flat inputs
// and outputs of the user's callable.
#pragma once

#include <array>

#include "fx/provenance.h"

namespace fxpress::capture {

// How torch.fx.Transformer creates the meta of a node's copy. It copies some entries of the
// original node's meta, and adds a note (fx/provenance.h) about the original node.
struct BirthRules {
  Ref fields;    // tuple: the keys of the entries to copy, in order
  Ref outer;     // dict: its entries are copied for a node whose meta is empty
  Ref sequence;  // autograd's sequence number; None: copy the number of the original node
  Ref overlay;   // dict: entries of each copy that override all other entries
  Ref marker;    // str that occurs in the stack trace of a node that accumulates a gradient
  Ref copy;      // the function copy.copy
  fx::ProvenanceRules provenance;
};

// Returns whether dict.get(key) is true.
bool is_set(PyObject* dict, PyObject* key);

// Returns the meta of a node. Raises TypeError unless it is a dict.
Ref dict_of_meta(PyObject* node);

struct RewritePlan {
  Ref inputs;  // list of dict: the meta of each flat input's placeholder; the dicts are not copied
  // list, one item per placeholder of the captured graph: an int (the flat input that replaces the
  // placeholder), a str (the attribute that replaces it), or None (it is kept)
  Ref places;
  Ref outputs;       // list of (CapturedOutput, value), one per output of the callable
  Ref module_paths;  // dict from the target of a call_module to the path of the module
  BirthRules birth;
};

// Where an output of the callable comes from. `value`: see RewritePlan::outputs.
enum class CapturedOutput : uint8_t {
  kComputed,  // value: index of an output of the captured graph
  kInput,     // value: index of a flat input
  kConstant,  // value: the output itself
};
inline constexpr std::array kCapturedOutputNames = {"graph_out", "input", "constant"};

// Creates a GraphModule from `module` as torch.fx.Transformer would. Also copies the attributes
// that get_attr nodes use, and cleans their names by clean_name(). Code is generated on first
// access. Raises KeyError, IndexError or ValueError if the plan does not match the graph.
Ref rewrite_captured(PyObject* module, const RewritePlan& plan);

// ---- names without the module that Dynamo wraps around the callable ----

// Returns without_export_root(name); the same object if nothing changes. Raises AttributeError
// unless `name` is a str, because torch calls a method of str.
Ref clean_name(PyObject* name);

// Replaces the nn_module_stack and the source_fn_stack of each node by copies without the wrapping
// module. drop_self: also remove the entry of L['self'].
void clean_stacks(PyObject* graph, bool drop_self);

}  // namespace fxpress::capture
