// Reports the progress of work on many bytes, and lets an interrupt end it.
#pragma once

#include <chrono>
#include <cstdint>
#include <functional>
#include <utility>

namespace fxpress::archive {

class Progress {
 public:
  // report(bytes since the last report): called by the thread that waits for the work, every 50 ms
  // or so; what it throws ends the work.
  using Report = std::function<void(uint64_t)>;

  explicit Progress(Report report) : report_(std::move(report)) {}

  void advance(uint64_t bytes) {
    bytes_ += bytes;
    const auto now = std::chrono::steady_clock::now();
    if (report_ && now - latest_ >= kInterval) {
      latest_ = now;
      finish();
    }
  }
  // Reports what is left.
  void finish() {
    if (report_) report_(std::exchange(bytes_, 0));
  }

  static constexpr auto kInterval = std::chrono::milliseconds(50);

 private:
  Report report_;
  uint64_t bytes_ = 0;  // not reported yet
  std::chrono::steady_clock::time_point latest_ = std::chrono::steady_clock::now();  // report
};

}  // namespace fxpress::archive
