// Defines Run, which runs a plan. run.cpp steps through the plan and looks ahead. native.cpp
// executes instructions that do not need Python. step.cpp executes one instruction through Python.
#pragma once

#include <ATen/core/stack.h>

#include <cstdint>
#include <vector>

#include "engine/modules.h"
#include "engine/plan.h"
#include "engine/slot.h"

namespace fxpress::engine {

// A run repeats two phases. With the GIL, it looks ahead: it reads attributes and checks inlined
// modules, up to the next instruction that needs Python. Without the GIL, it then executes the
// instructions up to there ("the stretch"). The next look-ahead sees all changes by Python code.
//
// A Run must be on the heap, because greenlets move the stack.
class Run {
 public:
  // The plan must outlive the run. All members except native() require the GIL.
  explicit Run(Plan& plan);
  ~Run();
  Run(const Run&) = delete;
  Run& operator=(const Run&) = delete;

  // Returns the graph's output for `args`. On an error, sets the Python error and throws.
  Ref execute(Ref args);

 private:
  struct Stretch {
    uint32_t limit;  // the instruction after the stretch
    bool boundary;   // whether this instruction needs Python
  };

  // Functions in run.cpp:
  void bind(PyObject* args);
  void bind_one(const Placeholder& placeholder, PyObject* value, bool held);
  void go();
  void check_modes();
  Stretch look_ahead();
  bool preload(uint32_t index);
  void read_ahead(const Instruction& instruction, Ref value);
  void forget_ahead();
  [[noreturn]] void fail(uint32_t frame, PyObject* node);

  // Functions in native.cpp:
  void native(uint32_t limit);
  bool execute_native(const Instruction& instruction);
  void drop_last(const Instruction& instruction);
  void enter(const Instruction& instruction);
  bool leave(const Instruction& instruction);
  bool boxed(const Instruction& instruction);
  void push_list(const ListArgument& list);
  bool get_item(const Instruction& instruction);
  bool compute(const Instruction& instruction);
  bool overdue();

  // Functions in step.cpp:
  void step();
  Ref call(const Instruction& instruction, PyObject* callee, PyObject* args, PyObject* kwargs);
  Ref call_module(const Instruction& instruction, PyObject* args, PyObject* kwargs);
  Ref call_method(const Instruction& instruction, PyObject* args, PyObject* kwargs);
  Ref load(const Instruction& instruction);
  Ref map(const Instruction& instruction, PyObject* argument);
  Ref map_tuple(const Instruction& instruction, PyObject* args);
  Ref map_dict(const Instruction& instruction, PyObject* kwargs);
  Ref value_of(const Instruction& instruction, PyObject* node);

  const NodeGuard& guard_of(const Instruction& instruction) const {
    return plan_.nodes[instruction.guard];
  }
  PyObject* module_of(uint32_t frame) const {
    return plan_.modules[plan_.frames[frame].module].module.get();
  }
  void release() {
    if (released_ == nullptr) released_ = PyEval_SaveThread();
  }
  void acquire() {
    if (released_ != nullptr) PyEval_RestoreThread(std::exchange(released_, nullptr));
  }
  void drop(Slot& slot) {
    if (slot.state == State::kObject) {
      acquire();
      ran_python_ = true;
      Py_CLEAR(slot.object);
    }
    slot.value = c10::IValue();
    slot.state = State::kEmpty;
  }

  Plan& plan_;  // shared with other runs
  CallCounters::OfRun scope_ = CallCounters::begin();
  std::vector<Slot> slots_;            // values of nodes, by slot
  c10::Stack stack_;                   // arguments and results of the current operator
  std::vector<uint32_t> read_ahead_;   // instructions whose values were read ahead
  std::vector<c10::IValue> held_;      // tensors that were read ahead; see read_ahead()
  std::vector<c10::IValue> inputs_;    // tensors that the caller also holds; see read_ahead()
  CallsAhead ahead_;                   // set by may_enter()
  PyThreadState* released_ = nullptr;  // null while this thread has the GIL
  Ref result_;                         // the graph's output
  uint32_t ip_ = 0;                    // index of the current instruction
  uint32_t event_ = 0;                 // position in plan_.events of the next event
  uint32_t window_ = kNone;            // number of instructions to look ahead
  uint32_t hint_ = 0;                  // index of the use that value_of() tries first
  uint32_t ticks_ = 0;                 // number of operator calls; each fourth call reads the clock
  int64_t polled_ = 0;                 // time of the last signal check, in milliseconds
  bool blocked_ = false;               // native() stopped at an instruction that needs Python
  bool ran_python_ = false;            // Python code may have run in the stretch
  bool done_ = false;                  // the output was executed
  bool inline_ok_ = true;              // modules may be inlined
  bool boxed_ok_ = true;               // operators may be called through the dispatcher
  bool hidden_ok_ = true;              // operators without runs_python do not run Python code
  bool meta_ = false;                  // torch.fx.traceback preserves the meta of nodes
};

}  // namespace fxpress::engine
