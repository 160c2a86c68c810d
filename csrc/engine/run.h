// Runs a plan. run.cpp steps through the plan and looks ahead, native.cpp executes instructions
// that do not need Python, step.cpp executes one instruction through Python.
#pragma once

#include <ATen/core/stack.h>

#include <cstdint>
#include <vector>

#include "engine/modules.h"
#include "engine/plan.h"
#include "engine/slot.h"

namespace fxpress::engine {

// A run repeats two phases. With the GIL, it looks ahead to the next instruction that needs Python,
// reading attributes and checking inlined modules. Without the GIL, it executes the instructions
// before that one, a stretch. The next look-ahead sees all changes made by Python.
//
// A run is on the heap: the stack of a suspended greenlet is moved.
class Run {
 public:
  // The plan must outlive the run. All members except native() require the GIL.
  explicit Run(Plan& plan);
  ~Run();
  Run(const Run&) = delete;
  Run& operator=(const Run&) = delete;

  // Returns the graph's output for these arguments. Errors are set in Python and thrown.
  Ref execute(Ref args);

 private:
  struct Stretch {
    uint32_t limit;  // the first instruction after the stretch
    bool boundary;   // the instruction at `limit` needs Python
  };

  // run.cpp
  void bind(PyObject* args);
  void bind_one(const Placeholder& placeholder, PyObject* value, bool held);
  void go();
  void check_modes();
  Stretch look_ahead();
  bool preload(uint32_t index);
  void read_ahead(const Instruction& instruction, Ref value);
  void forget_ahead();
  [[noreturn]] void fail(uint32_t frame, PyObject* node);

  // native.cpp
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

  // step.cpp
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
  std::vector<Slot> slots_;            // the values of nodes
  c10::Stack stack_;                   // arguments and results of the current operator
  std::vector<uint32_t> read_ahead_;   // instructions of the stretch whose values were read ahead
  std::vector<c10::IValue> held_;      // attributes of the stretch, see read_ahead()
  std::vector<c10::IValue> inputs_;    // arguments that the caller holds, see read_ahead()
  CallsAhead ahead_;                   // see may_enter()
  PyThreadState* released_ = nullptr;  // set while the GIL is not held
  Ref result_;                         // set by the output
  uint32_t ip_ = 0;                    // the current instruction
  uint32_t event_ = 0;                 // the first of plan_.events that is not before ip_
  uint32_t window_ = kNone;            // instructions to look ahead, see kShortWindow
  uint32_t hint_ = 0;                  // probable index of the next use in value_of()
  uint32_t ticks_ = 0;                 // operators called; the clock is read at every fourth
  int64_t polled_ = 0;                 // time of the last check for signals, in ms
  bool blocked_ = false;               // native() found a value that only Python can handle
  bool ran_python_ = false;            // Python code may have run within the stretch
  bool done_ = false;                  // the output was reached
  bool inline_ok_ = true;              // modules may be inlined
  bool boxed_ok_ = true;               // operators may be called through the dispatcher
  bool hidden_ok_ = true;              // operators run no Python beyond the plan's runs_python
  bool meta_ = false;                  // torch.fx.traceback preserves nodes' meta
};

}  // namespace fxpress::engine
