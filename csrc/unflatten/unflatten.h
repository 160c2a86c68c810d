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
  PyObject* may_alias;  // (node) -> bool: a result may be an argument or a view of an argument
  PyObject* parts;      // frozenset: functions that return an inner tensor of a tensor subclass
  std::vector<Mutation> mutations;
  PyObject* signatures;                     // list of tuples: signatures of preserved calls
  std::vector<std::string> with_signature;  // names of calls with a signature, and "" (the root)
  const ProgramState* state = nullptr;      // with copies set; null: the program has no state
  std::vector<std::string> paths;           // dotted paths of the original modules, in order
  ModuleClasses classes;
  bool run_with_interpreter;
  bool drop_dead_code;  // leave out nodes without effect or user
};

struct Unflattened {
  Ref root_type;               // the root's class in nn_module_stack, or None
  std::vector<CutStack> cuts;  // stacks that were cut; nodes are borrowed from the graph
};

// Fills `root`, whose graph is empty, and changes nothing else. Raises torch's errors for broken
// programs, with the node in the message.
Unflattened unflatten(const UnflattenSource& source, PyObject* root);

// A call of a module, as torch's _SubmoduleEntry describes it.
struct OutlinedCall {
  Ref key;          // identifies the module object
  Ref caller_path;  // path of the caller
  Ref caller;       // the calling module
  Ref call_node;    // node of the call in the caller's graph
  Ref path;         // path of the module
  uint32_t number;  // number of the call, from 1
  Ref module;       // the module
};
struct OutlinedAttribute {
  Ref call_name;  // call name of the module
  Ref target;     // target of a get_attr node in the module's graph
  Ref module;     // the module with this call name
};
struct Outlined {
  std::vector<OutlinedCall> calls;
  std::vector<OutlinedAttribute> attributes;
};

// Like unflatten(), but does not add state to the modules, merge calls or sort children.
Outlined outline_submodules(const UnflattenSource& source, PyObject* root);

}  // namespace fxpress::unflatten
