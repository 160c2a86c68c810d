// A Crew holds worker threads that one call starts and waits for.
#pragma once

#include <unistd.h>

#include <stdexcept>
#include <thread>
#include <utility>
#include <vector>

namespace fxpress::core {

// The data that the threads use must outlive the crew. Signal handlers and user code may fork the
// process while the call waits. The child process does not have the threads: there, join() throws
// and the destructor leaks the thread handles.
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
    for (std::jthread& thread : threads_) thread.join();  // ~jthread() would request a stop first
    threads_.clear();
  }
  // Throws std::runtime_error in a forked child.
  void check() const {
    if (is_gone()) {
      throw std::runtime_error(
          "the process was forked while this call used worker threads, which the child process "
          "does "
          "not have: repeat the call in the child");
    }
  }

 private:
  bool is_gone() const { return !threads_.empty() && getpid() != process_; }
  // Leaks the handles, because a forked child can neither join nor free them.
  void leave() { new std::vector<std::jthread>(std::exchange(threads_, {})); }

  pid_t process_ = getpid();
  std::vector<std::jthread> threads_;  // the destructor stops and joins them
};

}  // namespace fxpress::core
