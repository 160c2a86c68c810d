// GraphModules whose Python source is generated on demand.
#pragma once

#include <span>
#include <utility>
#include <vector>

#include "py/object.h"

namespace fxpress::fx {

// The targets of a graph's get_attr and call_module nodes with their values, in the order of the
// nodes. Borrowed.
using ModuleAttributes = std::vector<std::pair<PyObject*, PyObject*>>;

enum class CodeMode : uint8_t {
  kDeferred,   // DeferredAttribute descriptors: an ordinary class after the first access
  kTorchLazy,  // torch.fx._lazy_graph_module._LazyGraphModule
};

// Creates the module of torch.fx.GraphModule(dict(attributes), graph) without calling recompile().
// An attribute that the graph mentions twice may be listed twice.
Ref make_graph_module(const ModuleAttributes& attributes, PyObject* graph, CodeMode mode);

struct GraphModuleOptions {
  PyObject* base = nullptr;     // the class to derive from; null: torch.fx.GraphModule
  PyObject* values = nullptr;   // dict: target -> value, which overrides the attribute of the root
  PyObject* renamed = nullptr;  // dict: target -> its target in the root
};

// Creates the module of torch.fx.GraphModule(root, graph) without generating code: attributes that
// the graph mentions come from `root`. Renamed attributes come after the others.
Ref make_graph_module_of(PyObject* root, PyObject* graph, const GraphModuleOptions& options = {});

// Appends the direct children of a new GraphModule that need a recompile(), as torch's constructor
// does, because their graphs may have been edited. Skips children whose code is deferred.
void list_children_with_code(PyObject* module, std::vector<Ref>& result);

// module.recompile(). Runs torch's and the user's code generators; must not run in a GcPause.
void recompile(PyObject* module);

// torch.fx.passes.split_module._make_lite_graph_module: a torch-lazy module for a graph without
// parameters, in eval mode, with `modules` (a dict to adopt, or None) as its children.
Ref make_lite_graph_module(PyObject* graph, PyObject* modules);

}  // namespace fxpress::fx
