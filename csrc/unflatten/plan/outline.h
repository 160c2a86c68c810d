// Plans the graphs of the modules in which the nodes of a flat graph were traced.
//
// outline() walks over the flat graph, and enters and leaves module calls by each node's stack of
// modules. It creates no Python objects. A CallFrame describes one call. It lists the planned nodes
// twice: in order of creation, which determines their names, and in graph order.
#pragma once

#include <functional>
#include <memory>
#include <memory_resource>
#include <stdexcept>
#include <string>
#include <unordered_map>
#include <vector>

#include "core/graph.h"
#include "unflatten/plan/module_calls.h"
#include "unflatten/plan/module_tree.h"

namespace fxpress::unflatten {

using core::FrameId;
using core::Graph;
using core::ModuleId;
using core::NodeId;
using core::ObjectId;
using core::PlannedId;
using core::StringId;
using core::StringPool;

enum class Planned : uint8_t {
  kCopy,              // a copy of a node of the flat graph
  kRecompute,         // another copy of a flat node, in a graph that uses its value
  kPlaceholder,       // a copy of a placeholder of the flat graph, in the root
  kInput,             // a placeholder for a value that the caller passes
  kState,             // a get_attr of state, which replaces a placeholder
  kArgument,          // a placeholder for argument `index` of a preserved signature
  kSpec,              // a get_attr of tree spec `index` of the module
  kFlattenInputs,     // arguments of a preserved call -> leaves; inputs: arguments, spec
  kInputLeaf,         // leaf `index` of the result of kFlattenInputs
  kUnflattenInputs,   // leaves -> (args, kwargs), in the caller; inputs: leaves, spec
  kItem,              // value[index]
  kKeywordItem,       // value[keyword]; index: the keyword's StringId
  kCall,              // a call of the module of frame `index`
  kUnflattenOutputs,  // leaves -> result of a preserved call; inputs: leaves, spec
  kFlattenOutputs,    // result of a preserved call -> leaves, in the caller; inputs: call, spec
  kOutputItem,        // result `index` of a call with several results
  kWriteBack,         // copy_(first argument of a flat node, the copy of the node)
  kOutput,
};

// One leaf of a preserved signature.
struct SignatureLeaf {
  StringId name;      // name of a flat node, or invalid for a constant
  NodeId node;        // the flat node with this name, or invalid
  ObjectId constant;  // the value of a leaf that is a constant, else invalid
};

struct CallSignature {
  std::vector<SignatureLeaf> inputs;
  std::vector<SignatureLeaf> outputs;
  uint32_t positional = 0;         // number of positional arguments before flattening
  std::vector<StringId> keywords;  // keyword arguments of the call, in the order of the spec
};

struct PlannedNode {
  Planned kind = Planned::kCopy;
  bool removed = false;      // not in the final graph; its name stays taken
  bool lose_custom = false;  // its custom meta has moved to the call
  FrameId frame;             // the frame whose graph has the node
  NodeId source;             // the flat node that it copies or whose value it has, or invalid
  uint32_t index = 0;        // see Planned
  uint32_t custom = 0;       // number of its meta["custom"]; 0: none
  uint32_t input_begin = 0;  // position of its first input in Outline::inputs
  uint32_t input_count = 0;
  PlannedId replacement;  // the node that its users use instead, or invalid
  StringId path;          // kState: path of the attribute
};

// A tree spec of a preserved signature.
struct SpecUse {
  uint32_t signature;  // index in OutlineSource::signatures
  bool of_outputs;     // whether it is the out_spec; else the in_spec
};

// A call of a module and the plan of its graph. The lists are allocated in Outline::memory, because
// there may be thousands of frames with a few nodes each.
struct CallFrame {
  explicit CallFrame(std::pmr::memory_resource* of_outline) : memory(of_outline) {}

  std::pmr::memory_resource* memory;
  FrameId parent;                     // the caller; invalid for the root
  PlannedId call;                     // the kCall node in the caller's graph
  StringId path;                      // path of the module
  StringId call_name;                 // `path` with the number of the call
  StringId target;                    // the call name relative to the caller's path
  uint32_t call_index = 0;            // number of the call
  StringId key;                       // identifies the module object
  ModuleId module;                    // the module in the tree
  uint32_t signature = kNoSignature;  // index of the call's signature in OutlineSource::signatures
  bool path_has_signature = false;    // whether the module's first call has a signature
  std::pmr::vector<PlannedId> created{memory};  // every planned node, in order of creation
  std::pmr::vector<PlannedId> front{memory};    // kInput nodes, in reverse order
  std::pmr::vector<PlannedId> states{memory};   // kState nodes, in reverse order
  std::pmr::vector<PlannedId> body{memory};     // all other nodes, in order
  std::pmr::vector<NodeId> outer{memory};       // for each node in `front`: its flat node
  std::pmr::vector<PlannedId> passed{memory};   // for each node in `front`: the caller's node
  std::pmr::vector<NodeId> outputs{memory};     // flat nodes whose values the call returns
  std::pmr::vector<NodeId> mapped{memory};      // flat nodes whose values this graph computes
  std::pmr::vector<NodeId> get_attrs{memory};   // flat get_attr nodes copied into this graph
  std::pmr::vector<SpecUse> specs{memory};      // tree specs stored on the module, by number

  static constexpr uint32_t kNoSignature = 0xffffffffu;
};

// Why outline() rejects a flat graph.
enum class OutlineFault : uint8_t {
  kNoStack,
  kNotBelowRoot,
  kLatePlaceholder,
  kNotDescendant,
  kCannotPass,
  kMissingOutput,
};

class OutlineError : public std::runtime_error {
 public:
  // `detail`: the name of the module call; for kNotDescendant, a message.
  OutlineError(OutlineFault what_fault, NodeId at, const std::string& detail)
      : std::runtime_error(detail), fault(what_fault), node(at) {}
  const OutlineFault fault;
  const NodeId node;  // the flat node at fault, or invalid
};

struct OutlineSource {
  const Graph& graph;                                          // the flat graph
  const std::vector<StackId>& stacks;                          // by node: id in `scopes`
  const ModuleCallStacks& scopes;                              // the stacks by id
  const std::vector<uint32_t>& custom;                         // by node: see PlannedNode::custom
  const std::vector<CallSignature>& signatures;                // signatures of preserved calls
  const std::unordered_map<uint32_t, uint32_t>& signature_of;  // call name -> index in `signatures`
  // Whether a preserved call may recompute a node instead of receiving its value.
  std::function<bool(NodeId)> is_recomputable;
  // Whether a node writes to its first argument.
  std::function<bool(NodeId)> is_mutation;
  // Whether a node without a stack is repeated in each graph that uses it.
  std::function<bool(NodeId)> is_remade;

  // A marker in `stacks` instead of an id: the node belongs to the same module call as the node
  // before it. For a node without a stack, `stacks` has an invalid id.
  static constexpr StackId kInherits{uint32_t{0xfffffffe}};
};

struct Outline {
  // The memory of the lists in `frames` and `calls`. Do not assign to an Outline that has frames,
  // because the assignment would free this memory before it destroys the lists.
  std::unique_ptr<std::pmr::monotonic_buffer_resource> memory =
      std::make_unique<std::pmr::monotonic_buffer_resource>();
  std::vector<CallFrame> frames;   // frames in order of entry; callers first
  std::vector<PlannedNode> nodes;  // planned nodes of all frames
  std::vector<PlannedId> inputs;   // inputs of all nodes; invalid: a signature's constant, or None
  std::vector<StringId> keys;      // keys of modules, in order of first entry
  std::vector<std::pmr::vector<FrameId>> calls;  // by position in `keys`: frames with this key
  std::vector<FrameId> displaced;      // frames whose names later calls have taken; callers first
  ModuleId root;                       // root of the tree
  std::vector<uint32_t> module_frame;  // by module: its frame, or kNoFrame
  std::vector<uint32_t> module_type;   // by module: number of its class, or ModuleCall::kNoType

  static constexpr uint32_t kNoFrame = 0xffffffffu;

  // Whether outline() added the module. Later steps may add modules without a graph.
  bool is_outlined(ModuleId module) const { return module.value() < module_frame.size(); }
  FrameId frame_of(ModuleId module) const {
    const uint32_t frame = is_outlined(module) ? module_frame[module.value()] : kNoFrame;
    return frame == kNoFrame ? FrameId() : FrameId(frame);
  }
  PlannedNode& node(PlannedId id) { return nodes[id.value()]; }
  const PlannedNode& node(PlannedId id) const { return nodes[id.value()]; }
  std::span<const PlannedId> inputs_of(PlannedId id) const {
    return {inputs.data() + node(id).input_begin, node(id).input_count};
  }
  // Returns the node that replaces `id` in the final graph; if there is none, `id`.
  PlannedId resolve(PlannedId id) const {
    const PlannedId other = node(id).replacement;
    return other.valid() ? other : id;
  }
  // Returns the nodes of a frame's graph, in order.
  std::vector<PlannedId> order(FrameId frame) const;
};

// Plans the modules of a flat graph. Adds to `strings` and `tree`. Throws OutlineError.
Outline outline(const OutlineSource& source, StringPool& strings, ModuleTree& tree);

}  // namespace fxpress::unflatten
