// Rebuilds the tree of modules from which an exported program's flat graph was traced.
#pragma once

#include <string>
#include <vector>

#include "unflatten/write.h"

namespace fxpress::unflatten {

// The contents of the dict that python/fxpress/_graphs/unflatten/source.py builds, all borrowed.
struct UnflattenSource {
  PyObject* graph;      // the flat graph
  PyObject* owner;      // the module with the attributes of get_attr nodes
  PyObject* may_alias;  // (node) -> bool: whether a result may be an argument or its view
  PyObject* parts;      // frozenset: functions that return an inner tensor of a tensor subclass
  std::vector<Mutation> mutations;
  PyObject* signatures;                     // list of tuples: signatures of preserved calls
  std::vector<std::string> with_signature;  // names of calls with a signature, and "" (the root)
  const ProgramState* state = nullptr;      // with copies set; null: the program has no state
  std::vector<std::string> paths;           // dotted paths of the original modules, in order
  ModuleClasses classes;
  bool run_with_interpreter;
  bool drop_dead_code;  // omit nodes that have neither effects nor users
};

// Fills `root`, whose graph is empty, and changes nothing else. Returns a pair: the root's class in
// nn_module_stack, or None, and a list with (node, paths, dropped) of each CutStack. Raises torch's
// errors for broken programs, with the node in the message.
pybind11::tuple unflatten(const UnflattenSource& source, PyObject* root);

// Like unflatten(), but does not add state to the modules, merge calls or sort children. Returns
// (calls, attributes). A call has the fields of torch's _SubmoduleEntry: (key of the module object,
// path of the caller, the calling module, node of the call in the caller's graph, path of the
// module, number of the call from 1, the module). An attribute is (call name of a module, target of
// a get_attr node in the module's graph, the module).
pybind11::tuple outline_submodules(const UnflattenSource& source, PyObject* root);

}  // namespace fxpress::unflatten
