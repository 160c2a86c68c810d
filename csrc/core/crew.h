// Threads that work for a call, which waits for them.
#pragma once

#include <unistd.h>

#include <stdexcept>
#include <thread>
#include <utility>
#include <vector>

namespace fxpress::core {

// The data that the threads use has to outlive the crew. Signal handlers and the user's code may
// run in the thread that waits, and may fork: the child does not have the threads, and may not wait
// for them.
class Crew {
 public:
  Crew() = default;
  Crew(const Crew&) = delete;
  Crew& operator=(const Crew&) = delete;
  ~Crew() {
    if (is_gone()) leave();
  }

  // std::system_error when there can be no more threads.
  template <class Function>
  void add(Function function) {
    threads_.emplace_back(std::move(function));
  }
  // Waits until they are done; std::runtime_error in a child that does not have them.
  void join() {
    check();
    for (std::jthread& thread : threads_) thread.join();  // clear() alone would ask them to stop
    threads_.clear();
  }
  // std::runtime_error in a child that does not have the threads.
  void check() const {
    if (is_gone()) {
      throw std::runtime_error(
          "the process was forked while threads worked for this call: in the "
          "child it cannot go on");
    }
  }

 private:
  bool is_gone() const { return !threads_.empty() && getpid() != process_; }
  // Forgets the threads, whose handles can be neither joined nor freed here.
  // NOLINTNEXTLINE(clang-analyzer-cplusplus.NewDeleteLeaks)
  void leave() { new std::vector<std::jthread>(std::exchange(threads_, {})); }

  pid_t process_ = getpid();
  std::vector<std::jthread> threads_;  // stopped and joined when it is gone
};

}  // namespace fxpress::core
