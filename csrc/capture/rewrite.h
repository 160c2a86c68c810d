// The graph that Dynamo captured, with the inputs and the outputs of what the user calls.
#pragma once

#include <array>

#include "fx/provenance.h"

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

struct RewritePlan {
  Ref inputs;        // list of dict: the meta of each flat input's placeholder, to own
  Ref places;        // list, for each placeholder of the captured graph: int, the input that it is;
                     // str, the attribute of the module that it becomes; None, it stays one
  Ref outputs;       // list of (kind, value), see CapturedOutput
  Ref module_paths;  // dict: target of call_module -> the path that a tracer finds for the module
  BirthRules birth;
};

// The sources of outputs of a captured callable, and Dynamo's words for them.
enum class CapturedOutput : uint8_t {
  kComputed,  // value: its position among the outputs of the captured graph
  kInput,     // value: the flat input
  kConstant,  // value: itself
};
inline constexpr std::array kCapturedOutputNames = {"graph_out", "input", "constant"};

// A GraphModule with the nodes of `module` as torch.fx.Transformer would leave them, and the
// attributes that they mention, without the module that stood around the callable in their names.
// Its code is generated when it is asked for. KeyError, IndexError or ValueError for a plan that
// does not fit the graph.
Ref rewrite_captured(PyObject* module, const RewritePlan& plan);

// ---- names in captured graphs without the module that Dynamo puts around the callable ----

// capture::without_export_root for a str; the same object where nothing changes. AttributeError for
// anything else, as from a method that only a str has.
Ref clean_name(PyObject* name);

// Cleans the nn_module_stack and the source_fn_stack of all nodes: new containers without an entry
// for the module itself, and with `drop_self` without entries whose path is the module's own.
void clean_stacks(PyObject* graph, bool drop_self);

}  // namespace fxpress::capture
