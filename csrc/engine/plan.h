// Defines the plan of a graph: its instructions and the instructions of inlined submodules. Builder
// creates a plan, the `__dict__` of the graph owns it (see entry.h), and all threads that run the
// graph share it.
#pragma once

#include <ATen/core/dispatch/Dispatcher.h>

#include <cstdint>
#include <vector>

#include "engine/symbols.h"

namespace fxpress::engine {

constexpr uint32_t kNone = ~0U;

enum class Kind : uint8_t {
  kLoad,      // get_attr
  kConstant,  // a constant argument of an inlined submodule
  kEnter,     // call_module that is inlined; the instructions of its graph follow
  kLeave,     // output of an inlined submodule
  kPass,      // like kLeave, if the output is already in its slot
  kBoxed,     // call of an operator through the dispatcher
  kGetItem,   // operator.getitem with a constant index
  kInt,       // arithmetic operation on two ints
  kFunction,  // any other call_function
  kMethod,    // call_method
  kModule,    // call_module that is not inlined
  kOutput,    // output of the root's graph
};

enum class IntOp : uint8_t {
#define FXPRESS_INT_OP(op, function) op,
#include "engine/int_ops.def"
#undef FXPRESS_INT_OP
};

// A node whose value an instruction reads.
struct Use {
  PyObject* node;  // borrowed from the arguments of the instruction's node
  uint32_t slot;   // slot of the value
  bool last;       // whether the value is freed after this use
};

struct Instruction {
  Kind kind;
  bool runs_python;     // whether a kBoxed may run Python code
  uint32_t frame;       // index in `frames`: the call in which the node runs
  uint32_t guard;       // index of the node in `nodes`
  uint32_t out;         // slot of the result; kNone if nothing reads it
  uint32_t uses_begin;  // the instruction's range in `uses`
  uint32_t uses_end;
  uint32_t detail;  // index in the table of the plan that `kind` uses
};

// The type that a value must have to be passed to an operator without conversion.
enum class Expect : uint8_t {
  kTensor,
  kInt,
  kFloat,
  kBool,
  kNumber,
  kTensorList,
  kIntList,
  kNothing,  // only Python can pass the value
};

// An item of a ListArgument, which is a list or tuple with nodes as items.
struct Element {
  uint32_t slot;         // slot of the item; kNone if it is a constant
  bool move;             // whether this is the last use of the slot
  c10::IValue constant;  // the item if slot is kNone
};

struct ListArgument {
  Expect element;                 // kTensor, kInt: type of the items; kNothing: a tuple
  bool optional;                  // whether items may be None, as in Tensor?[]
  std::vector<Element> elements;  // the items of the list, in order
};

struct Argument {
  enum class Form : uint8_t { kConstant, kSlot, kList };

  Form form;
  Expect expect;   // for kSlot: required type of the value
  bool optional;   // for kSlot: whether the value may be None
  bool move;       // for kSlot: whether this is the last use of the slot
  uint32_t index;  // slot, index in `constants`, or index in `lists`
};

// A call of an operator, with all arguments in the order of the schema.
struct BoxedCall {
  c10::OperatorHandle op;  // valid unless has_gone(op, Plan::operators)
  uint32_t begin;          // the call's range in `arguments`
  uint32_t end;
  bool numbers;  // whether to use call_with_numbers()
};

struct GetItem {
  int64_t index;  // may be negative
  uint32_t slot;  // slot of the container
  bool move;      // whether this is the last use of the container
};

struct IntCall {
  IntOp op;
  uint32_t slot[2];  // slots of the operands; kNone: use `constant`
  int64_t constant[2];
};

// How register_forward() registered the forward() of a class.
enum class Forward : uint8_t {
  kUnknown,     // not registered
  kModule,      // InterpreterModule: runs self.graph
  kDispatcher,  // InterpreterModuleDispatcher: calls the next of its _call_modules
  kCounting,    // a dispatcher that reads its count by engine::next_call()
};

inline bool is_dispatcher(Forward kind) {
  return kind == Forward::kDispatcher || kind == Forward::kCounting;
}

// A module that the plan uses, and its path from the root. The members from `checked` on are a
// cache, valid while dicts and classes have the recorded versions. Writing them requires the GIL.
struct ModuleRef {
  Ref module;                            // the module; for the root, set only during runs
  uint32_t parent = kNone;               // ModuleRef of the parent; kNone for the root
  Ref name;                              // key in the parent's _modules; empty if `item` is used
  uint32_t item = kNone;                 // index in the _call_modules of the parent, a dispatcher
  uint32_t checked = 0;                  // Plan::walk when the path was checked last
  bool in_place = false;                 // whether the path led to the module in the last check
  uint64_t holder_version = 0;           // version of the parent's _modules when it had `name`
  unsigned int name_type_version = 0;    // version of the parent's class when it lacked `name`
  uint64_t name_dict_version = 0;        // version of the parent's __dict__ when it lacked `name`
  uint64_t name_parameters_version = 0;  // version of the parent's _parameters without `name`
  uint64_t name_buffers_version = 0;     // version of the parent's _buffers without `name`
  PyObject* dict = nullptr;              // the module's __dict__ at the last refresh(), borrowed
  uint64_t dict_version = 0;             // version of `dict`; 0: nothing is cached
  bool plain_dict = false;               // whether no entry of __dict__ changes calls of the module
  bool interprets = false;         // whether it is finalized and runs its graph by an interpreter
  PyObject* parameters = nullptr;  // _parameters in `dict`; this and the next 3: borrowed
  PyObject* buffers = nullptr;
  PyObject* modules = nullptr;
  PyObject* graph = nullptr;
  PyObject* hooks[4] = {};        // the module's four dicts of hooks
  uint64_t unhooked = 0;          // dict_changes() when the dicts in `hooks` were empty
  PyTypeObject* type = nullptr;   // the module's class, borrowed
  unsigned int type_version = 0;  // version of `type`; 0: nothing is cached
  bool plain_attributes = false;  // whether getattr() works as in nn.Module
  bool plain_call = false;        // whether `type` calls forward() as nn.Module does
  Forward forward{};              // how the forward() of `type` was registered
};

struct Load {
  uint32_t owner;                 // ModuleRef of the attribute's owner; kNone: only Python finds it
  Ref name;                       // the attribute's name
  unsigned int type_version = 0;  // version of the owner's class when it lacked `name`
  uint64_t dict_version = 0;      // version of the owner's __dict__ when it lacked `name`
  uint64_t tables[3] = {};        // versions of the owner's parameters, buffers and modules
  PyObject* value = nullptr;      // the attribute, borrowed; valid while the versions are unchanged
};

struct Enter {
  uint32_t module;              // ModuleRef of the callee
  uint32_t dispatcher = kNone;  // ModuleRef of the dispatcher that calls the callee, if any
  uint32_t call_index = 0;      // index of the dispatcher's call
  uint32_t call_count = 0;      // number of the dispatcher's calls
  uint32_t skip = 0;            // the instruction after the inlined instructions
  uint32_t result = kNone;      // slot of the callee's output
  uint32_t nodes_begin = 0;     // range of the callee's graph in `nodes`
  uint32_t nodes_end = 0;
  Ref graph;                    // the callee's graph
  PyObject* root = nullptr;     // the graph's root node, borrowed
  PyObject* dict = nullptr;     // the graph's __dict__, which contained `root`
  uint64_t dict_version = 0;    // version of `dict` when it contained `root`
  Ref arg_names;                // the callee's list of argument names; empty without keywords
  std::vector<uint32_t> dying;  // if Python makes the call: slots to free after it
};

// The fields of a node when the plan was built.
struct NodeGuard {
  Ref node;
  Ref op;
  Ref target;
  Ref args;
  Ref kwargs;
  PyObject* next;  // the next node, borrowed from the next guard or the root
};

// A call of a module, for error messages. Instructions refer to the call in which they run.
struct Frame {
  uint32_t parent = kNone;      // frame of the caller; kNone for the root
  PyObject* call = nullptr;     // the call_module node, borrowed from `nodes`
  uint32_t module = 0;          // ModuleRef of the called module
  uint32_t dispatcher = kNone;  // ModuleRef of the dispatcher that calls it, if any
};

struct Placeholder {
  PyObject* node;  // the placeholder node, borrowed from `nodes`
  uint32_t slot;   // slot of the value; kNone if nothing reads it
  bool rest;       // whether it is *args, which gets all remaining arguments
};

// A class, and its version when the plan was built. A decision of the plan, for example not to
// inline a module, depends on the class.
struct Refusal {
  Ref type;
  unsigned int version;
};

struct Plan {
  Ref graph;                              // the graph of the root module
  PyObject* root = nullptr;               // the root node of `graph`, borrowed
  uint32_t root_nodes = 0;                // number of the graph's nodes, which are first in `nodes`
  uint64_t kernels = 0;                   // kernels_version() when the plan was built
  uint64_t operators = 0;                 // operators_gone() before the plan was built
  uint32_t runs = 0;                      // number of active runs
  bool stale = false;                     // whether an inlined module has changed
  std::vector<Refusal> refusals;          // if one of these classes changes, the plan is invalid
  uint32_t walk = 0;                      // incremented by each look-ahead
  uint32_t slots = 0;                     // number of slots that a run needs
  std::vector<Placeholder> placeholders;  // placeholders of `graph`
  std::vector<Instruction> instructions;
  std::vector<uint32_t> events;  // instructions that look_ahead() must check
  std::vector<Use> uses;
  std::vector<Argument> arguments;
  std::vector<c10::IValue> constants;  // constant arguments of operators
  std::vector<ListArgument> lists;
  std::vector<BoxedCall> boxed;
  std::vector<GetItem> items;
  std::vector<IntCall> ints;
  std::vector<Load> loads;
  std::vector<Ref> objects;  // constants of kConstant instructions
  std::vector<Enter> enters;
  std::vector<Frame> frames;
  std::vector<ModuleRef> modules;
  std::vector<NodeGuard> nodes;
};

}  // namespace fxpress::engine
