// Reads an exported program for unflatten. Adds the writes that the signature describes to the flat
// graph, and reads the module stack of each node.
#pragma once

#include <string>
#include <unordered_map>
#include <vector>

#include "core/graph.h"
#include "fx/reader.h"
#include "unflatten/plan/module_calls.h"

namespace fxpress::unflatten {

enum class WriteTarget : uint8_t { kBufferOrInput, kParameter };

// One of the leading outputs of an exported graph: the new value of a parameter, buffer or input.
struct Mutation {
  WriteTarget target;
  std::string input;  // the placeholder's name
};

struct Mutations {
  const std::vector<Mutation>& outputs;
  PyObject* may_alias;  // (node) -> bool: whether a result may be an argument or its view
};

// How a node of a FlatProgram relates to its origin, a node of the program's graph.
enum class FlatKind : uint8_t {
  kOriginal,  // a copy of its origin
  kWrite,     // copy_(input, origin), added after its origin
  kDetach,    // detach(input), through which a parameter is written
  kSnapshot,  // clone(origin): saves the value of an input or of its view
};

// A node whose stack was cut because its modules do not nest.
struct CutStack {
  PyObject* node;                  // borrowed
  std::vector<std::string> paths;  // paths of the modules in the stack, before the cut
  size_t dropped;                  // number of modules that were removed
};

struct FlatProgram {
  fx::ReadGraph source;               // the program's graph, not changed
  core::StringPool strings;           // names, paths, keys
  std::vector<Ref> string_objects;    // the results of string(), by id
  core::Graph graph;                  // the source with added nodes: only ops and inputs
  std::vector<core::NodeId> origin;   // by node: its origin in the source
  std::vector<FlatKind> kinds;        // by node: its FlatKind
  std::vector<uint8_t> is_placed;     // by node: whether it is in the module of the node before it
  std::vector<Ref> names;             // by node: the name that copies of the node request
  std::vector<core::NodeId> node_of;  // by name in the source, see node_named()
  bool is_exported = false;           // whether the graph is from torch.export
  size_t skipped_outputs = 0;         // number of mutated values
  ModuleCallStacks scopes;            // the distinct stacks of modules
  std::vector<StackId> stacks;        // by node: id in `scopes`
  std::unordered_map<uint32_t, Ref> cut_stacks;  // node of the source -> its new nn_module_stack
  std::vector<CutStack> cuts;                    // the stacks that were cut, for the log
  std::vector<uint32_t> custom;                  // by node: its custom meta in custom_meta; 0: none
  std::vector<Ref> custom_meta;                  // values of meta["custom"], by number
  std::vector<Ref> types;                        // classes of modules, by the numbers in scopes
  Ref root_type;                                 // class of the root, or None

  // Returns the Python string of an id, borrowed. Caches it, because names such as "weight" recur.
  PyObject* string(core::StringId id) {
    if (string_objects.size() <= id.value()) string_objects.resize(strings.size());
    Ref& object = string_objects[id.value()];
    if (!object) object = new_string(strings.text(id));
    return object.get();
  }
  // Returns the node that has this name in the source, or an invalid id.
  core::NodeId node_named(core::StringId name) const {
    return name.value() < node_of.size() ? node_of[name.value()] : core::NodeId();
  }
  PyObject* original(core::NodeId node) const { return source.nodes[origin[node.value()].value()]; }
  PyObject* target(core::NodeId node) const {
    return source.targets[source.graph.targets[origin[node.value()].value()]];
  }
};

// Fills an empty program. If `drop_dead_code`, omits nodes that have neither effects nor users. If
// `is_exported` (the graph is from torch.export), cuts stacks that do not nest, and skips the
// mutated outputs. Raises torch's AssertionError unless the last node is an output with 1 argument.
void read_program(FlatProgram& program, PyObject* graph, const Mutations& mutations,
                  bool is_exported, bool drop_dead_code);

}  // namespace fxpress::unflatten
