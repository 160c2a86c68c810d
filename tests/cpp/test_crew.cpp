// Threads that work for a call.

#include <doctest/doctest.h>

#include <atomic>
#include <chrono>
#include <stop_token>
#include <thread>

#include "core/crew.h"

namespace fxpress::core {

namespace {

// Long enough for the other thread to be in the middle of its work, however busy the machine is.
constexpr auto kWork = std::chrono::milliseconds(50);

}  // namespace

TEST_CASE("a crew that is joined does all of its work") {
  std::atomic<bool> was_stopped = false;
  std::atomic<int> done = 0;
  Crew crew;
  for (int i = 0; i < 3; ++i) {
    crew.add([&](const std::stop_token& stop) {
      std::this_thread::sleep_for(kWork);
      if (stop.stop_requested()) was_stopped = true;
      ++done;
    });
  }
  crew.join();
  CHECK(done == 3);
  CHECK_FALSE(was_stopped);
}

TEST_CASE("the destructor of a crew stops its threads and waits for them") {
  std::atomic<bool> is_over = false;
  {
    Crew crew;
    crew.add([&](const std::stop_token& stop) {
      while (!stop.stop_requested()) std::this_thread::yield();
      is_over = true;
    });
  }
  CHECK(is_over);
}

}  // namespace fxpress::core
