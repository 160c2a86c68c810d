// Defines the plan of a graph: flat instructions, including instructions of inlined submodules.
// Builder creates a plan, the graph's `__dict__` holds it (entry.h), and all threads that run the
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
  kConstant,  // an argument of an inlined submodule that is not a node
  kEnter,     // call_module that is inlined: its nodes follow
  kLeave,     // output of an inlined submodule
  kPass,      // output of an inlined submodule, whose value keeps its slot
  kBoxed,     // an operator through the dispatcher
  kGetItem,   // operator.getitem with a constant index
  kInt,       // arithmetic of two ints
  kFunction,  // any other call_function
  kMethod,    // call_method
  kModule,    // call_module that is not inlined
  kOutput,    // output of the graph itself
};

enum class IntOp : uint8_t {
#define FXPRESS_INT_OP(op, function) op,
#include "engine/int_ops.def"
#undef FXPRESS_INT_OP
};

// A node that an instruction reads.
struct Use {
  PyObject* node;  // borrowed from the arguments of the instruction's node
  uint32_t slot;   // slot of the value
  bool last;       // whether this is the last use, after which the value is freed
};

struct Instruction {
  Kind kind;            // the operation
  bool runs_python;     // a kBoxed that may run Python: checks are repeated after it
  uint32_t frame;       // frame of its node
  uint32_t guard;       // the node, index in `nodes`
  uint32_t out;         // slot of the result; kNone if it is not read
  uint32_t uses_begin;  // its range in `uses`
  uint32_t uses_end;
  uint32_t detail;  // index in the table of the plan for `kind`
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
  kNothing,  // no type: only a call from Python can pass it
};

// An element of a list argument that contains nodes.
struct Element {
  uint32_t slot;         // kNone: a constant
  bool move;             // whether this is the last use of the slot
  c10::IValue constant;  // if slot is kNone
};

struct ListArgument {
  Expect element;                 // kTensor or kInt
  bool optional;                  // elements may be None: Tensor?[]
  std::vector<Element> elements;  // the items of the list, in order
};

struct Argument {
  enum class Form : uint8_t { kConstant, kSlot, kList };

  Form form;
  Expect expect;   // of a slot
  bool optional;   // of a slot: may be None
  bool move;       // of a slot: whether this is its last use
  uint32_t index;  // slot, or index in `constants` or `lists`
};

// An operator and all its arguments, in the order of the schema.
struct BoxedCall {
  c10::OperatorHandle op;  // valid unless has_gone(op, Plan::operators)
  uint32_t begin;          // its range in `arguments`
  uint32_t end;
  bool numbers;  // see call_with_numbers()
};

struct GetItem {
  int64_t index;  // may be negative
  uint32_t slot;  // slot of the container
  bool move;      // whether this is the last use of the container
};

struct IntCall {
  IntOp op;
  uint32_t slot[2];  // slots of the operands; kNone: the operand is in `constant`
  int64_t constant[2];
};

// How a class's forward was registered.
enum class Forward : uint8_t {
  kUnknown,     // not registered
  kModule,      // InterpreterModule: runs self.graph
  kDispatcher,  // InterpreterModuleDispatcher: calls the next of self._call_modules
  kCounting,    // a dispatcher that reads its count by next_call() of entry.h
};

inline bool is_dispatcher(Forward kind) {
  return kind == Forward::kDispatcher || kind == Forward::kCounting;
}

// A module that the plan uses, found by its path from the root. The members from `checked` on are a
// cache, valid for the recorded versions of dicts and types, and written under the GIL.
struct ModuleRef {
  Ref module;                   // the object that was found; for the root, set during runs only
  uint32_t parent = kNone;      // the module that holds it; kNone for the root
  Ref name;                     // its key in the parent's _modules; empty: an item of a dispatcher
  uint32_t item = kNone;        // its index in the parent's _call_modules
  uint32_t checked = 0;         // Plan::walk of the last check of its path
  bool in_place = false;        // the result of the last check
  uint64_t holder_version = 0;  // version of the parent's _modules that contained it
  unsigned int name_type_version = 0;  // the parent's class had no attribute `name` at that version
  uint64_t name_dict_version = 0;      // the parent's __dict__ had no `name` at that version
  uint64_t name_parameters_version = 0;  // the parent's parameters had no `name` at that version
  uint64_t name_buffers_version = 0;     // the parent's buffers had no `name` at that version
  PyObject* dict = nullptr;              // its __dict__ at the last refresh, borrowed
  uint64_t dict_version = 0;             // version of `dict`; 0: nothing is cached
  bool plain_dict = false;               // nothing in __dict__ changes how it is called
  bool interprets = false;               // finalized, and runs its graph with an interpreter
  PyObject* parameters = nullptr;        // this and the next three: borrowed from __dict__
  PyObject* buffers = nullptr;
  PyObject* modules = nullptr;
  PyObject* graph = nullptr;
  PyObject* hooks[4] = {};        // the module's four dicts of hooks
  uint64_t unhooked = 0;          // dict_changes() when all `hooks` were empty
  PyTypeObject* type = nullptr;   // its class, borrowed from the object
  unsigned int type_version = 0;  // version of the class; 0: not cached
  bool plain_attributes = false;  // attributes are looked up as in nn.Module
  bool plain_call = false;        // the class does not change how forward is called
  Forward forward{};              // how the forward of its class was registered
};

struct Load {
  uint32_t owner;                 // ModuleRef that has the attribute; kNone: Python finds it
  Ref name;                       // name of the attribute
  unsigned int type_version = 0;  // the owner's class had no attribute `name` at that version
  uint64_t dict_version = 0;      // the owner's __dict__ had no `name` at that version
  uint64_t tables[3] = {};        // versions of the owner's parameters, buffers and modules
  PyObject* value = nullptr;      // the attribute at these versions, borrowed from the tables
};

struct Enter {
  uint32_t module;              // ModuleRef of the callee
  uint32_t dispatcher = kNone;  // ModuleRef of the dispatcher between caller and callee
  uint32_t call_index = 0;      // index of the dispatcher's call
  uint32_t call_count = 0;      // number of the dispatcher's calls
  uint32_t skip = 0;            // the instruction after the inlined ones
  uint32_t result = kNone;      // slot of the result
  uint32_t nodes_begin = 0;     // range in `nodes` of the callee's graph
  uint32_t nodes_end = 0;
  Ref graph;                  // the callee's graph
  PyObject* root = nullptr;   // its root node, borrowed from the graph
  PyObject* dict = nullptr;   // the graph's __dict__ when it had this root
  uint64_t dict_version = 0;  // version of `dict` at that time
  Ref arg_names;              // the callee's list of argument names, if it is called with keywords
  std::vector<uint32_t> dying;  // slots of outer values whose last use is in the inlined part
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

// The call of a module that an instruction belongs to, for error messages.
struct Frame {
  uint32_t parent = kNone;      // the calling frame
  PyObject* call = nullptr;     // its call_module node, borrowed from `nodes`
  uint32_t module = 0;          // ModuleRef of the called module
  uint32_t dispatcher = kNone;  // ModuleRef of the dispatcher between caller and callee
};

struct Placeholder {
  PyObject* node;  // the placeholder node, borrowed from `nodes`
  uint32_t slot;   // slot of its value; kNone if the value is not read
  bool rest;       // whether it is starred, and gets the remaining arguments
};

// A class, with its version, on which a decision of the plan depends, such as not to inline a
// module.
struct Refusal {
  Ref type;
  unsigned int version;
};

struct Plan {
  Ref graph;                              // the graph of the root module
  PyObject* root = nullptr;               // its root node, borrowed from the graph
  uint32_t root_nodes = 0;                // number of its nodes, the first of `nodes`
  uint64_t kernels = 0;                   // kernels_version() when it was built
  uint64_t operators = 0;                 // operators_gone() before it was built
  uint32_t runs = 0;                      // number of active runs
  bool stale = false;                     // an inlined part has changed
  std::vector<Refusal> refusals;          // classes whose change makes the plan invalid
  uint32_t walk = 0;                      // number of the last look-ahead
  uint32_t slots = 0;                     // number of slots of a run
  std::vector<Placeholder> placeholders;  // of the root's graph
  std::vector<Instruction> instructions;
  std::vector<uint32_t> events;  // instructions that look_ahead() checks
  std::vector<Use> uses;
  std::vector<Argument> arguments;
  std::vector<c10::IValue> constants;  // constant arguments of operators, converted once
  std::vector<ListArgument> lists;
  std::vector<BoxedCall> boxed;
  std::vector<GetItem> items;
  std::vector<IntCall> ints;
  std::vector<Load> loads;
  std::vector<Ref> objects;  // constants of kConstant
  std::vector<Enter> enters;
  std::vector<Frame> frames;
  std::vector<ModuleRef> modules;
  std::vector<NodeGuard> nodes;
};

}  // namespace fxpress::engine
