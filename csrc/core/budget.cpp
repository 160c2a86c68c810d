#include "core/budget.h"

#include <pthread.h>

namespace fxpress::core {

constinit thread_local uintptr_t stack_end = 0;

uintptr_t find_stack_end() {
  stack_end = 1;  // no limit if the system does not report the stack
  pthread_attr_t attributes;
  if (pthread_getattr_np(pthread_self(), &attributes) != 0) return stack_end;
  void* lowest = nullptr;
  size_t size = 0;
  if (pthread_attr_getstack(&attributes, &lowest, &size) == 0) {
    stack_end = reinterpret_cast<uintptr_t>(lowest);
  }
  pthread_attr_destroy(&attributes);
  return stack_end;
}

void Budget::reach_memory() const {
  throw LimitReached("memory", place_);
}

}  // namespace fxpress::core
