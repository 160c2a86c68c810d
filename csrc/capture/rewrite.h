// Rewrites the graph that Dynamo captured so that its inputs and outputs are the flat inputs and
// outputs of the user's callable.
#pragma once

#include <array>

#include "fx/provenance.h"

namespace fxpress::capture {

// The rules by which torch's tracers create the meta of a node's copy: the copy gets some entries
// of the original's meta, and a note (fx/provenance.h) of the original.
struct BirthRules {
  Ref fields;    // tuple: the entries that are copied, in order
  Ref outer;     // dict: used instead of the meta of a node whose meta is empty
  Ref sequence;  // autograd's sequence number; None: use the original's number
  Ref overlay;   // dict: entries that override all other entries of the copy
  Ref marker;    // str that the stack traces of accumulated gradients contain
  Ref copy;      // copy.copy
  fx::ProvenanceRules provenance;
};

// Returns bool(dict.get(key)).
bool is_set(PyObject* dict, PyObject* key);

// Returns the meta of a node; raises TypeError unless it is a dict.
Ref dict_of_meta(PyObject* node);

struct RewritePlan {
  Ref inputs;   // list of dict: the meta of each flat input's placeholder, which takes it over
  Ref places;   // list, by placeholder of the captured graph: int: the flat input that replaces
                // it; str: the attribute that replaces it; None: it stays a placeholder
  Ref outputs;  // list of (kind, value), see CapturedOutput
  Ref module_paths;  // dict: target of call_module -> the path that a tracer finds for the module
  BirthRules birth;
};

// The source of an output of the callable, by Dynamo's names. `value`: see RewritePlan::outputs.
enum class CapturedOutput : uint8_t {
  kComputed,  // value: position among the outputs of the captured graph
  kInput,     // value: number of the flat input
  kConstant,  // value: the constant
};
inline constexpr std::array kCapturedOutputNames = {"graph_out", "input", "constant"};

// Creates a GraphModule with the nodes of `module` as torch.fx.Transformer would copy them, and the
// attributes that they mention, whose names clean_name() cleans. Its code is generated on first
// access. Raises KeyError, IndexError or ValueError for a plan that does not fit the graph.
Ref rewrite_captured(PyObject* module, const RewritePlan& plan);

// ---- removing the module that Dynamo wraps around the callable from names ----

// Applies without_export_root() to a str; returns the same object if nothing changes.
// AttributeError for other types, because torch calls a method of str.
Ref clean_name(PyObject* name);

// Replaces the nn_module_stack and the source_fn_stack of all nodes by clean copies, without the
// entry of the wrapping module; with `drop_self`, also without the entry of L['self'].
void clean_stacks(PyObject* graph, bool drop_self);

}  // namespace fxpress::capture
