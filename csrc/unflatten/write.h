// Makes modules from an outline: graphs, children and state are created once, as they will stay.
#pragma once

#include <string>
#include <vector>

#include "unflatten/plan/arrange.h"
#include "unflatten/plan/outline.h"
#include "unflatten/program.h"
#include "unflatten/state.h"

namespace fxpress::unflatten {

// A name under which a module holds a value, and that value.
struct State {
  core::StringId name;  // within the module
  Role role;
  PyObject* value;  // borrowed from the program or its state
};

struct Signatures {
  std::vector<CallSignature> calls;  // by number
  std::vector<Ref> in_specs;         // by number
  std::vector<Ref> out_specs;        // by number
  std::vector<Ref> constants;        // by the ids in `calls`
};

// The classes of the modules to make.
struct ModuleClasses {
  PyObject* interpreter;  // runs a graph
  PyObject* dispatcher;   // runs one of several modules
};

// All inputs of write_modules().
struct UnflattenPlan {
  FlatProgram& program;
  const Signatures& signatures;
  ModuleTree& tree;
  Outline& outline;
  std::vector<std::vector<State>>& state;  // by module
  const core::FlatMap& state_group;        // module -> the module whose state it shares, or kAbsent
  std::vector<std::pair<core::ModuleId, Ref>>& given;  // modules of the tree that exist already
  std::vector<Dispatcher>& dispatchers;
  ModuleClasses classes;
  bool run_with_interpreter;  // the flag that new modules get
};

// A written module and its graph's calls.
struct WrittenModules {
  std::vector<Ref> modules;     // by module id; empty where none was reachable
  std::vector<Ref> call_nodes;  // by frame: the call_module node, or empty
};

// Fills `root`, a module whose __init__ has run. Every module below is new.
WrittenModules write_modules(const UnflattenPlan& plan, PyObject* root);

}  // namespace fxpress::unflatten
