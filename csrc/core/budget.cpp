#include "core/budget.h"

#include <pthread.h>

namespace fxpress::core {

namespace {

// What is left for the calls of the last level: tensors and expressions are made in Python.
constexpr uintptr_t kReserve = 96 << 10;  // bytes

// Where the stack of this thread ends; 0 when the system does not say.
uintptr_t find_stack_end() {
  pthread_attr_t attributes;
  if (pthread_getattr_np(pthread_self(), &attributes) != 0) return 0;
  void* lowest = nullptr;
  size_t size = 0;
  const int failed = pthread_attr_getstack(&attributes, &lowest, &size);
  pthread_attr_destroy(&attributes);
  return failed != 0 ? 0 : reinterpret_cast<uintptr_t>(lowest);
}

}  // namespace

bool stack_has_room() {
  thread_local const uintptr_t end = find_stack_end();  // the same as long as the thread lives
  const char here = 0;
  const auto now = reinterpret_cast<uintptr_t>(&here);
  return now < end || now - end > kReserve;  // elsewhere: on a stack of somebody's own
}

void check_stack(const char* place) {
  if (!stack_has_room()) throw LimitReached("depth", place);
}

}  // namespace fxpress::core
