// Worker threads of one call, which waits for them.
#pragma once

#include <unistd.h>

#include <stdexcept>
#include <thread>
#include <utility>
#include <vector>

namespace fxpress::core {

// The data that the threads use must outlive the crew. Signal handlers and the user's code may run
// in the waiting thread, and may fork. The child process does not have the threads, so it must not
// join them.
class Crew {
 public:
  Crew() = default;
  Crew(const Crew&) = delete;
  Crew& operator=(const Crew&) = delete;
  ~Crew() {
    if (is_gone()) leave();
  }

  // Throws std::system_error when the system cannot start another thread.
  template <class Function>
  void add(Function function) {
    threads_.emplace_back(std::move(function));
  }
  // Waits until the threads are done. Throws std::runtime_error in a forked child.
  void join() {
    check();
    for (std::jthread& thread : threads_) thread.join();  // clear() alone would request a stop
    threads_.clear();
  }
  // Throws std::runtime_error in a forked child, which does not have the threads.
  void check() const {
    if (is_gone()) {
      throw std::runtime_error(
          "the process was forked while threads worked for this call: in the "
          "child it cannot go on");
    }
  }

 private:
  bool is_gone() const { return !threads_.empty() && getpid() != process_; }
  // Leaks the handles: in a forked child they can be neither joined nor freed.
  // NOLINTNEXTLINE(clang-analyzer-cplusplus.NewDeleteLeaks)
  void leave() { new std::vector<std::jthread>(std::exchange(threads_, {})); }

  pid_t process_ = getpid();
  std::vector<std::jthread> threads_;  // the destructor stops and joins them
};

}  // namespace fxpress::core
