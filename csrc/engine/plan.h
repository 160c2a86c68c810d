// A plan of a graph: flat instructions, those of inlined submodules included. build.cpp makes it,
// the graph holds it (entry.h), and all threads that run the graph share it.
#pragma once

#include <ATen/core/dispatch/Dispatcher.h>

#include <cstdint>
#include <vector>

#include "engine/symbols.h"

namespace fxpress::engine {

constexpr uint32_t kNone = ~0U;

enum class Kind : uint8_t {
  kLoad,      // get_attr
  kConstant,  // an argument of an inlined submodule that is no node
  kEnter,     // call_module that is inlined: its nodes follow
  kLeave,     // output of an inlined submodule
  kPass,      // likewise, of a value that was made in it and keeps its slot
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
  uint32_t slot;   // where its value is
  bool last;       // nobody reads it later: it is freed
};

struct Instruction {
  Kind kind;            // what to do
  bool runs_python;     // a kBoxed that may call Python without our seeing it: checks are repeated
  uint32_t frame;       // whose node it is
  uint32_t guard;       // the node, index in `nodes`
  uint32_t out;         // slot of the result; kNone when nobody reads it
  uint32_t uses_begin;  // its part of `uses`
  uint32_t uses_end;
  uint32_t detail;  // index in the table of its kind
};

// The type that a value must have for an operator to take it without conversion.
enum class Expect : uint8_t {
  kTensor,
  kInt,
  kFloat,
  kBool,
  kNumber,
  kTensorList,
  kIntList,
  kNothing,  // never: the Python call converts
};

// An element of a list of which some elements are nodes.
struct Element {
  uint32_t slot;         // kNone: a constant
  bool move;             // last use of the slot
  c10::IValue constant;  // when it is one
};

struct ListArgument {
  Expect element;                 // kTensor or kInt
  bool optional;                  // elements may be None: Tensor?[]
  std::vector<Element> elements;  // in order
};

struct Argument {
  enum class Form : uint8_t { kConstant, kSlot, kList };

  Form form;       // which of the three
  Expect expect;   // of a slot
  bool optional;   // of a slot: None will do
  bool move;       // of a slot: last use
  uint32_t index;  // slot, or index in `constants` or `lists`
};

// An operator and its arguments, all of them, in the order of the schema.
struct BoxedCall {
  c10::OperatorHandle op;  // valid as long as Plan::operators says so
  uint32_t begin;          // its part of `arguments`
  uint32_t end;
  bool numbers;  // see call_with_numbers()
};

struct GetItem {
  int64_t index;  // may be negative
  uint32_t slot;  // of the container
  bool move;      // last use of the container
};

struct IntCall {
  IntOp op;          // which one
  uint32_t slot[2];  // kNone: the constant
  int64_t constant[2];
};

// How a class's forward was registered.
enum class Forward : uint8_t {
  kUnknown,     // not at all
  kModule,      // InterpreterModule: runs self.graph
  kDispatcher,  // InterpreterModuleDispatcher: calls the next of self._call_modules
  kCounting,    // a dispatcher that asks the engine for its count, see next_call() in bind.cpp
};

inline bool is_dispatcher(Forward kind) {
  return kind == Forward::kDispatcher || kind == Forward::kCounting;
}

// A module that the plan goes through, by its way from the root. The second half is a cache of what
// was found when its dict and its type had the versions that it has; written under the GIL.
struct ModuleRef {
  Ref module;                   // the object that was found; the root's while a run is at work
  uint32_t parent = kNone;      // the module that holds it; kNone for the root
  Ref name;                     // its key in the parent's _modules; empty: an item of a dispatcher
  uint32_t item = kNone;        // its index in the parent's _call_modules
  uint32_t checked = 0;         // the last walk that has looked for it in its place
  bool in_place = false;        // what that walk has found
  uint64_t holder_version = 0;  // version of the parent's _modules when it was there
  unsigned int name_type_version = 0;    // the parent's class had no such attribute at that version
  uint64_t name_dict_version = 0;        // nor had the parent's __dict__
  uint64_t name_parameters_version = 0;  // nor its parameters
  uint64_t name_buffers_version = 0;     // nor its buffers
  PyObject* dict = nullptr;              // its __dict__ when that was seen last, borrowed
  uint64_t dict_version = 0;             // version of that; 0: nothing is remembered
  bool plain_dict = false;               // nothing in __dict__ changes how it is called
  bool interprets = false;               // finalized, and it does run its graph with an interpreter
  PyObject* parameters = nullptr;        // borrowed from __dict__, as all of these
  PyObject* buffers = nullptr;
  PyObject* modules = nullptr;
  PyObject* graph = nullptr;
  PyObject* hooks[4] = {};        // its four dicts of hooks
  uint64_t unhooked = 0;          // dict_changes() when all four were empty
  PyTypeObject* type = nullptr;   // its class, borrowed from the object
  unsigned int type_version = 0;  // version of the class; 0: never seen
  bool plain_attributes = false;  // attributes are found as nn.Module finds them
  bool plain_call = false;        // calls go straight to forward
  Forward forward{};              // of its class
};

struct Load {
  uint32_t owner;                 // ModuleRef whose attribute it is; kNone: ask Python
  Ref name;                       // of the attribute
  unsigned int type_version = 0;  // the owner's class had no such attribute at that version
  uint64_t dict_version = 0;      // nor had its __dict__
  uint64_t tables[3] = {};        // the owner's parameters, buffers and modules had these versions
  PyObject* value = nullptr;      // when it was this, borrowed from them
};

struct Enter {
  uint32_t module;              // ModuleRef of the callee
  uint32_t dispatcher = kNone;  // ModuleRef of the dispatcher in between
  uint32_t call_index = 0;      // which of the dispatcher's calls it is
  uint32_t call_count = 0;      // how many the dispatcher has
  uint32_t skip = 0;            // the instruction behind the inlined ones
  uint32_t result = kNone;      // slot of the result
  uint32_t nodes_begin = 0;     // its graph's part of `nodes`
  uint32_t nodes_end = 0;
  Ref graph;                    // the callee's graph
  PyObject* root = nullptr;     // its root node, borrowed from the graph
  PyObject* dict = nullptr;     // the graph's __dict__ that had this root
  uint64_t dict_version = 0;    // and its version then
  Ref arg_names;                // its list of argument names, when it is called with keywords
  std::vector<uint32_t> dying;  // slots from outside whose last use is in the inlined part
};

// A node as it was when the plan was made.
struct NodeGuard {
  Ref node;
  Ref op;
  Ref target;
  Ref args;
  Ref kwargs;
  PyObject* next;  // borrowed: the node behind it, which the next guard or the root holds
};

// Where an instruction comes from, for the names in exceptions.
struct Frame {
  uint32_t parent = kNone;      // the calling frame
  PyObject* call = nullptr;     // its call_module node, borrowed from `nodes`
  uint32_t module = 0;          // ModuleRef whose graph it is
  uint32_t dispatcher = kNone;  // ModuleRef of the dispatcher in between
};

struct Placeholder {
  PyObject* node;  // borrowed from `nodes`
  uint32_t slot;   // kNone when nobody reads it
  bool rest;       // a starred one, which takes the remaining arguments
};

// A class that kept a module from being inlined, and its version then.
struct Refusal {
  Ref type;
  unsigned int version;
};

struct Plan {
  Ref graph;                              // the graph of the root module
  PyObject* root = nullptr;               // its root node, borrowed from the graph
  uint32_t root_nodes = 0;                // how many of `nodes` are its own: the first ones
  uint64_t kernels = 0;                   // kernels_version() when it was made
  uint64_t operators = 0;                 // operators_gone() when the handles in `boxed` were found
  uint32_t runs = 0;                      // how many are at work
  bool stale = false;                     // some inlined part was found changed
  std::vector<Refusal> refusals;          // when one of these changes the plan is made anew
  uint32_t walk = 0;                      // number of the last walk, see ModuleRef::checked
  uint32_t slots = 0;                     // how many values a run needs space for
  std::vector<Placeholder> placeholders;  // of the root's graph
  std::vector<Instruction> instructions;
  std::vector<uint32_t> events;  // instructions that are looked at ahead of a stretch
  std::vector<Use> uses;
  std::vector<Argument> arguments;
  std::vector<c10::IValue> constants;  // converted once
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
