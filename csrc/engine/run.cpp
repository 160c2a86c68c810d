#include "engine/run.h"

#include <ATen/PythonTorchFunctionTLS.h>
#include <ATen/SavedTensorHooks.h>
#include <c10/core/impl/LocalDispatchKeySet.h>
#include <c10/core/impl/TorchDispatchModeTLS.h>

#include "engine/convert.h"
#include "engine/operators.h"
#include "py/calls.h"

namespace fxpress::engine {

namespace {

// After a stretch in which Python code may have run, a run looks ahead only kShortWindow
// instructions. After any other stretch, it looks twice as far ahead as before, up to kLongWindow.
constexpr uint32_t kShortWindow = 8;
constexpr uint32_t kLongWindow = 1U << 20;

// Returns whether a profiler or debugger traces Python calls, which include calls of modules.
bool is_profiled() {
  const PyThreadState* thread = PyThreadState_Get();
  return thread->c_profilefunc != nullptr || thread->c_tracefunc != nullptr;
}

bool has_global_hooks() {
  for (PyObject* name : {names.global_forward_pre_hooks, names.global_forward_hooks,
                         names.global_backward_pre_hooks, names.global_backward_hooks}) {
    PyObject* hooks = dict_get(symbols.nn_module_globals, name);
    if (hooks == nullptr || !PyDict_Check(hooks) || PyDict_GET_SIZE(hooks) != 0) return true;
  }
  return false;
}

// Returns whether a mode intercepts operators. Calls through the dispatcher reach modes too, but
// modes must receive the arguments exactly as Python passes them.
bool has_modes() {
  using c10::impl::tls_is_dispatch_key_included;
  return at::impl::PythonTorchFunctionTLS::stack_len() > 0 ||
         c10::impl::TorchDispatchModeTLS::any_modes_set() ||
         tls_is_dispatch_key_included(c10::DispatchKey::PreDispatch) ||
         tls_is_dispatch_key_included(c10::DispatchKey::PythonDispatcher);
}

}  // namespace

Run::Run(Plan& plan) : plan_(plan), slots_(plan.slots) {
  held_.reserve(plan.loads.size());
  read_ahead_.reserve(plan.loads.size() + plan.objects.size());
}

Run::~Run() {
  acquire();
  for (Slot& slot : slots_) {
    if (slot.state == State::kObject) Py_CLEAR(slot.object);
  }
}

Ref Run::execute(Ref args) {
  bind(args.get());
  args = Ref();
  try {
    go();
  } catch (...) {
    acquire();
    set_python_error(std::current_exception());
    const Instruction& instruction = plan_.instructions[ip_];
    fail(instruction.frame, guard_of(instruction).node.get());
  }
  return result_ ? std::move(result_) : Ref::borrow(Py_None);
}

void Run::bind(PyObject* args) {
  PyObject** items = PySequence_Fast_ITEMS(args);
  const Py_ssize_t count = PySequence_Fast_GET_SIZE(args);
  const bool held = Py_REFCNT(args) > 1;  // if false, the run can free the arguments early
  Py_ssize_t next = 0;
  for (const Placeholder& placeholder : plan_.placeholders) {
    if (placeholder.rest) {
      const Ref rest = Ref::steal(PySequence_GetSlice(args, next, count));
      const Ref list = Ref::steal(PySequence_List(rest.get()));
      next = count;
      bind_one(placeholder, list.get(), false);
    } else if (next < count) {
      bind_one(placeholder, items[next++], held);
    } else {
      // missing_argument() returns the default, or raises an error if there is none.
      Ref value;
      try {
        value = cpython::call(symbols.missing_argument, placeholder.node);
      } catch (pybind11::error_already_set& error) {
        error.restore();
        fail(0, placeholder.node);
      }
      bind_one(placeholder, value.get(), false);
    }
  }
}

void Run::bind_one(const Placeholder& placeholder, PyObject* value, bool held) {
  if (placeholder.slot == kNone) return;
  Slot& slot = slots_[placeholder.slot];
  store_object(slot, Ref::borrow(value));
  if (held && slot.state == State::kNative && slot.value.isTensor()) inputs_.push_back(slot.value);
}

void Run::go() {
  const auto end = static_cast<uint32_t>(plan_.instructions.size());
  while (!done_ && ip_ < end) {
    // Python itself checks for signals and switches threads only between byte codes.
    if (overdue()) {
      check(PyErr_CheckSignals());
      release();
      acquire();
    }
    const Stretch stretch = look_ahead();
    if (ip_ < stretch.limit) {
      native(stretch.limit);
      acquire();
      if (blocked_) {
        blocked_ = false;
        window_ = kShortWindow;
        forget_ahead();
        step();
        continue;
      }
      if (ran_python_) {
        window_ = kShortWindow;
      } else if (window_ < kLongWindow) {
        window_ *= 2;
      }
    }
    if (stretch.boundary && ip_ == stretch.limit) step();
  }
}

void Run::check_modes() {
  meta_ = dict_get(symbols.traceback_globals, names.preserve_meta) == Py_True;
  const bool tracing = is_jit_tracing();
  inline_ok_ = !meta_ && !tracing && !is_profiled() && !has_global_hooks();
  boxed_ok_ = !meta_ && !tracing && !has_modes();
  hidden_ok_ = at::SavedTensorDefaultHooks::get_tls_state().stack.empty() &&
               kernels_version() == plan_.kernels;
}

Run::Stretch Run::look_ahead() {
  forget_ahead();
  check_modes();
  ran_python_ = false;
  ++plan_.walk;
  ahead_.clear();
  const auto end = static_cast<uint32_t>(plan_.instructions.size());
  Stretch stretch{window_ < end - ip_ ? ip_ + window_ : end, false};
  if (!boxed_ok_ || !hidden_ok_) {
    uint32_t first = ip_;
    while (first < stretch.limit && plan_.instructions[first].kind != Kind::kBoxed) ++first;
    if (first < stretch.limit) {
      stretch = boxed_ok_ ? Stretch{first + 1, false} : Stretch{first, true};
    }
  }
  const auto& events = plan_.events;
  while (event_ < events.size() && events[event_] < ip_) ++event_;
  for (uint32_t e = event_; e < events.size() && events[e] < stretch.limit; ++e) {
    const uint32_t index = events[e];
    if (plan_.instructions[index].runs_python) return {index + 1, false};
    if (!preload(index)) return {index, true};
  }
  return stretch;
}

// Reads an attribute, or checks an inlined module, while the run has the GIL. Returns false if the
// instruction needs Python.
bool Run::preload(uint32_t index) {
  const Instruction& instruction = plan_.instructions[index];
  switch (instruction.kind) {
    case Kind::kLoad: {
      if (meta_) return false;
      PyObject* value = plain_attribute(plan_, plan_.loads[instruction.detail]);
      if (value == nullptr) return false;
      read_ahead(instruction, Ref::borrow(value));
      return true;
    }
    case Kind::kConstant:
      read_ahead(instruction, Ref::borrow(plan_.objects[instruction.detail].get()));
      return true;
    case Kind::kEnter:
      return inline_ok_ && may_enter(plan_, plan_.enters[instruction.detail], *scope_, ahead_);
    default:
      return false;
  }
}

// Sets the value of a later instruction. Frees nothing, because freeing may run Python code that
// changes objects borrowed by look_ahead().
void Run::read_ahead(const Instruction& instruction, Ref value) {
  if (instruction.out == kNone) return;
  Slot& slot = slots_[instruction.out];  // empty, because no other value uses it
  store_object(slot, std::move(value));
  read_ahead_.push_back(static_cast<uint32_t>(&instruction - plan_.instructions.data()));
  // When the reference count of a tensor falls to 1, torch acquires the GIL to release its Python
  // object. The reference in held_ prevents this until forget_ahead(), which requires the GIL.
  if (slot.state == State::kNative && slot.value.isTensor()) held_.push_back(slot.value);
}

// Drops attributes that were read ahead and not used yet: Python code may run now and change them.
void Run::forget_ahead() {
  for (; !read_ahead_.empty() && read_ahead_.back() >= ip_; read_ahead_.pop_back()) {
    drop(slots_[plan_.instructions[read_ahead_.back()].out]);
  }
  read_ahead_.clear();
  held_.clear();
}

// Adds the node, and the nodes that call its graph, to the current Python error, and throws it.
void Run::fail(uint32_t frame, PyObject* node) {
  PyObject *type = nullptr, *value = nullptr, *traceback = nullptr;
  PyErr_Fetch(&type, &value, &traceback);
  PyErr_NormalizeException(&type, &value, &traceback);
  if (traceback != nullptr) PyException_SetTraceback(value, traceback);
  Py_XDECREF(type);
  Py_XDECREF(traceback);
  Ref error = Ref::steal(value);
  const bool ordinary = PyObject_IsInstance(error.get(), PyExc_Exception) == 1;
  while (ordinary) {
    const Frame& at = plan_.frames[frame];
    error = cpython::call(symbols.annotate, error, node, module_of(frame));
    if (at.parent == kNone) break;
    if (at.dispatcher != kNone) scope_->set(plan_.modules[at.dispatcher].module.get(), 0);
    node = at.call;
    frame = at.parent;
  }
  PyObject* kind = reinterpret_cast<PyObject*>(Py_TYPE(error.get()));
  Py_INCREF(kind);
  PyObject* trace = PyException_GetTraceback(error.get());
  PyErr_Restore(kind, error.release(), trace);
  throw_python_error();
}

}  // namespace fxpress::engine
