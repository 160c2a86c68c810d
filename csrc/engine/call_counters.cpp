#include "engine/call_counters.h"

#include "py/instance_dict.h"

namespace fxpress::engine {

namespace {

thread_local CallCounters* outermost = nullptr;  // lives on the stack of the thread's outermost run

}  // namespace

CallCounters::CallCounters() : outer_(outermost) {
  if (outer_ == nullptr) outermost = this;
}

CallCounters::~CallCounters() {
  if (outer_ != nullptr) return;
  outermost = nullptr;
  if (counters_.empty()) return;
  PyObject *type = nullptr, *value = nullptr, *traceback = nullptr;
  PyErr_Fetch(&type, &value, &traceback);
  for (const auto& [dispatcher, counter] : counters_) {
    if (counter.index == counter.stored) continue;
    try {
      store_call(dispatcher, counter.index);
    } catch (const pybind11::error_already_set&) {
      PyErr_Clear();
    }
  }
  PyErr_Restore(type, value, traceback);
}

CallCounters* CallCounters::current() {
  return outermost;
}

int64_t CallCounters::next(PyObject* dispatcher) {
  CallCounters* scope = outer_ == nullptr ? this : outer_;
  const auto found = scope->counters_.find(dispatcher);
  if (found != scope->counters_.end()) return found->second.index;
  const int64_t stored = stored_call(dispatcher);
  if (stored < 0) return -1;
  scope->counters_.emplace(dispatcher, Counter{Ref::borrow(dispatcher), stored, stored});
  return stored;
}

void CallCounters::set(PyObject* dispatcher, int64_t index) {
  CallCounters* scope = outer_ == nullptr ? this : outer_;
  const auto found = scope->counters_.find(dispatcher);
  if (found != scope->counters_.end()) found->second.index = index;
}

int64_t stored_call(PyObject* dispatcher) {
  const Ref dict = instance_dict(dispatcher);
  PyObject* number = dict_get(dict.get(), names.num_calls);
  if (number == nullptr || !PyLong_CheckExact(number)) return -1;
  const int64_t index = PyLong_AsLongLong(number);
  if (index == -1 && PyErr_Occurred() != nullptr) PyErr_Clear();
  return index;
}

void store_call(PyObject* dispatcher, int64_t index) {
  const Ref dict = instance_dict(dispatcher);
  const Ref number = Ref::steal(PyLong_FromLongLong(index));
  check(PyDict_SetItem(dict.get(), names.num_calls, number.get()));
}

}  // namespace fxpress::engine
