// Creates GraphModules whose Python source is generated on demand.
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
  kDeferred,   // the first access of a DeferredAttribute generates the code
  kTorchLazy,  // torch.fx._lazy_graph_module._LazyGraphModule generates the code
};

// Creates torch.fx.GraphModule(dict(attributes), graph) without calling recompile(). `attributes`
// may list an attribute twice.
Ref make_graph_module(const ModuleAttributes& attributes, PyObject* graph, CodeMode mode);

struct GraphModuleOptions {
  PyObject* base = nullptr;     // the class to derive from; null: torch.fx.GraphModule
  PyObject* values = nullptr;   // dict: target -> value, which overrides the attribute of the root
  PyObject* renamed = nullptr;  // dict: target in the graph -> target in the root
};

// Creates torch.fx.GraphModule(root, graph) without generating code: the attributes that the graph
// mentions are copied from `root`, renamed attributes last.
Ref make_graph_module_of(PyObject* root, PyObject* graph, const GraphModuleOptions& options = {});

// Appends the children of a new GraphModule that its creator has to recompile(), as torch's
// constructor does, because their graphs may have been edited. Skips indirect children, and
// children whose code is deferred.
void list_children_with_code(PyObject* module, std::vector<Ref>& result);

// Like torch.fx.passes.split_module._make_lite_graph_module: creates a _LazyGraphModule for a graph
// without parameters, in eval mode. modules: its dict of children, or None for a new dict.
Ref make_lite_graph_module(PyObject* graph, PyObject* modules);

}  // namespace fxpress::fx
