// Defines Crew, the worker threads that one call starts and waits for.
#pragma once

#include <unistd.h>

#include <stdexcept>
#include <thread>
#include <utility>
#include <vector>

namespace fxpress::core {

// Owns worker threads. The data that they use must outlive the crew. If a signal handler or user
// code forks the process during the call, the child does not have the threads. In the child, join()
// throws, and the destructor leaks the thread handles.
class Crew {
 public:
  Crew() = default;
  Crew(const Crew&) = delete;
  Crew& operator=(const Crew&) = delete;
  ~Crew() {
    if (is_gone()) leave();
  }

  // Starts a thread that calls function(). Throws std::system_error if the system cannot start it.
  template <class Function>
  void add(Function function) {
    threads_.emplace_back(std::move(function));
  }
  // Waits until all threads have ended. Throws std::runtime_error in a forked child.
  void join() {
    check();
    for (std::jthread& thread : threads_) thread.join();  // ~jthread() would request a stop first
    threads_.clear();
  }
  // Throws std::runtime_error if this process is a forked child, which does not have the threads.
  void check() const {
    if (is_gone()) {
      throw std::runtime_error(
          "the process was forked while this call used worker threads, which the child process "
          "does not have: repeat the call in the child");
    }
  }

 private:
  bool is_gone() const { return !threads_.empty() && getpid() != process_; }
  // Leaks the handles, because a forked child can neither join nor free them.
  void leave() { new std::vector<std::jthread>(std::exchange(threads_, {})); }

  pid_t process_ = getpid();
  std::vector<std::jthread> threads_;  // ~jthread() requests a stop and joins
};

}  // namespace fxpress::core
