// The sources and sinks of an archive's bytes, open files and memory, with the progress of work on
// them and the error for a faulty archive.
#pragma once

#include <chrono>
#include <cstdint>
#include <functional>
#include <stdexcept>
#include <utility>
#include <vector>

#include "archive/crc32.h"

namespace fxpress::archive {

using WritableBytes = std::span<std::byte>;

// A faulty archive; the message names the record, if it is one that is at fault. Errors of the
// operating system are std::system_error.
class ArchiveError : public std::runtime_error {
  using std::runtime_error::runtime_error;
};

// Bytes that are read, from any number of threads.
class Source {
 public:
  virtual ~Source() = default;
  virtual uint64_t size() const = 0;
  // Fills `to` with the bytes from `offset` on; ArchiveError when there are fewer.
  virtual void read(uint64_t offset, WritableBytes to) const = 0;
  // The number of bytes to read at a time: still in the cache when they are checked.
  virtual size_t piece() const { return size_t{1} << 18; }
};

// Bytes that are written one after the other.
class ByteSink {
 public:
  virtual ~ByteSink() = default;
  virtual void write(Bytes bytes) = 0;
};

// An open file from a position on. The descriptor is borrowed, and its position not used.
class FileSource final : public Source {
 public:
  FileSource(int descriptor, uint64_t start);
  uint64_t size() const override { return size_; }
  void read(uint64_t offset, WritableBytes to) const override;

 private:
  int descriptor_;
  uint64_t start_;  // where in the file the archive begins
  uint64_t size_;   // bytes from there to the end, when it was opened
};

class MemorySource final : public Source {
 public:
  explicit MemorySource(Bytes bytes) : bytes_(bytes) {}
  uint64_t size() const override { return bytes_.size(); }
  void read(uint64_t offset, WritableBytes to) const override;

 private:
  Bytes bytes_;
};

// A descriptor that is written to as it is: a file, a pipe. It is borrowed. What is written to a
// file is sent on its way to the disk at once, so that there is little to wait for at the end.
class FileSink final : public ByteSink {
 public:
  explicit FileSink(int descriptor);
  void write(Bytes bytes) override;

 private:
  void start_writing_back();

  int descriptor_;
  bool is_file_;
  int64_t position_ = 0;  // in a file
  int64_t sent_ = 0;      // up to there it is on its way to the disk
};

// Collects small writes in front of another sink.
class BufferedSink final : public ByteSink {
 public:
  explicit BufferedSink(ByteSink& sink);
  void write(Bytes bytes) override;
  void flush();

 private:
  ByteSink& sink_;
  std::vector<std::byte> buffer_;  // not passed on yet
};

// Reports the progress of work on many bytes, and lets an interrupt end it.
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
