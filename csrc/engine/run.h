// One run of a plan. Three files: run.cpp goes through the plan and looks ahead, native.cpp
// executes what needs no Python, step.cpp executes one instruction through Python.
#pragma once

#include <ATen/core/stack.h>

#include <cstdint>
#include <vector>

#include "engine/modules.h"
#include "engine/plan.h"
#include "engine/slot.h"

namespace fxpress::engine {

// A run alternates between stretches. With the GIL it looks ahead to the next instruction that
// needs Python: attributes up to there are read, inlined modules checked. The stretch is then
// executed without the GIL. Whatever Python changes is seen by the next look ahead.
//
// A run is on the heap: callbacks refer to it, and the stack of a greenlet that waits is elsewhere.
class Run {
 public:
  // The plan stays alive and `module` is its root; with the GIL, as everything but native().
  explicit Run(Plan& plan);
  ~Run();
  Run(const Run&) = delete;
  Run& operator=(const Run&) = delete;

  // The graph's output for these arguments; Python's error is set and thrown when something fails.
  Ref execute(Ref args);

 private:
  struct Stretch {
    uint32_t limit;  // the first instruction that is not in it
    bool boundary;   // that one needs Python
  };

  // run.cpp
  void bind(PyObject* args);
  void bind_one(const Placeholder& placeholder, PyObject* value, bool held);
  void go();
  void look_around();
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
  void free_uses(const Instruction& instruction);
  static PyObject* map_callback(PyObject* self, PyObject* node);

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
  std::vector<Slot> slots_;            // values
  c10::Stack stack_;                   // arguments and results of the operator at work
  std::vector<uint32_t> read_ahead_;   // instructions of the stretch whose values are set already
  std::vector<c10::IValue> held_;      // attributes of the stretch, see read_ahead()
  std::vector<c10::IValue> inputs_;    // arguments that the caller holds, likewise
  CallsAhead ahead_;                   // see may_enter()
  PyThreadState* released_ = nullptr;  // set while the GIL is not held
  Ref result_;                         // set by the output
  uint32_t ip_ = 0;                    // the instruction at work
  uint32_t event_ = 0;                 // the first of plan_.events that is not behind ip_
  uint32_t window_ = kNone;            // how far to look ahead; short where values are unusual
  uint32_t hint_ = 0;                  // where the use that is asked for next may be
  uint32_t ticks_ = 0;                 // operators called, to look at the clock now and then
  int64_t polled_ = 0;                 // time of the last look for signals, in ms
  bool blocked_ = false;               // native() has met a value that only Python can handle
  bool ran_python_ = false;            // code of the user's may have run within the stretch
  bool done_ = false;                  // the output was reached
  bool inline_ok_ = true;              // modules may be inlined
  bool boxed_ok_ = true;               // operators may be called through the dispatcher
  bool hidden_ok_ = true;              // no operator runs Python without our knowing
  bool meta_ = false;                  // torch.fx.traceback preserves nodes' meta
};

}  // namespace fxpress::engine
