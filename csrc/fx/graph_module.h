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
  kDeferred,   // our descriptors: the eager class as soon as anybody looks
  kTorchLazy,  // torch.fx._lazy_graph_module._LazyGraphModule
};

// Makes the module that torch.fx.GraphModule(dict(attributes), graph) makes, without the call of
// recompile(). An attribute that the graph mentions twice may be listed twice.
Ref make_graph_module(const ModuleAttributes& attributes, PyObject* graph, CodeMode mode);

struct GraphModuleOptions {
  PyObject* base = nullptr;     // the class to derive from: another one than torch.fx.GraphModule
  PyObject* values = nullptr;   // dict: values of targets that go before those of the root
  PyObject* renamed = nullptr;  // dict: target -> the target that the root has it under
};

// Makes the module that torch.fx.GraphModule(root, graph) makes, without the source: the attributes
// that the graph mentions are those of `root`. Renamed ones come behind the others.
Ref make_graph_module_of(PyObject* root, PyObject* graph, const GraphModuleOptions& options = {});

// Appends the GraphModules right below a new one that are to get fresh code, as from torch's
// constructor: their graphs may have been edited. Not those whose code is deferred anyway.
void list_children_with_code(PyObject* module, std::vector<Ref>& result);

// module.recompile(). Runs torch's and the user's code generators: outside of any GcPause.
void recompile(PyObject* module);

// torch.fx.passes.split_module._make_lite_graph_module: a torch-lazy module for a graph without
// parameters, in eval mode, with `modules` (a dict to adopt, or None) as its children.
Ref make_lite_graph_module(PyObject* graph, PyObject* modules);

}  // namespace fxpress::fx
