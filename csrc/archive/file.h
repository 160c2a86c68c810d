// Defines sources and sinks of archive bytes (files and memory), Progress and ArchiveError.
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

// Thrown if an archive is damaged or invalid. The message names the affected record, if there is
// one. Errors of the operating system are thrown as std::system_error.
class ArchiveError : public std::runtime_error {
  using std::runtime_error::runtime_error;
};

// A source of bytes that any number of threads may read.
class Source {
 public:
  virtual ~Source() = default;
  virtual uint64_t size() const = 0;
  // Fills `to` with the bytes from `offset` on. Throws ArchiveError if the source ends earlier.
  virtual void read(uint64_t offset, WritableBytes to) const = 0;
  // The number of bytes to read at a time: few enough that crc32() finds them in the cache.
  virtual size_t piece() const { return size_t{1} << 18; }
};

// Accepts bytes in order.
class ByteSink {
 public:
  virtual ~ByteSink() = default;
  virtual void write(Bytes bytes) = 0;
};

// Reads an open file from offset `start` on. Borrows the descriptor, and ignores its file position.
class FileSource final : public Source {
 public:
  FileSource(int descriptor, uint64_t start);
  uint64_t size() const override { return size_; }
  void read(uint64_t offset, WritableBytes to) const override;

 private:
  int descriptor_;
  uint64_t start_;  // offset of the archive in the file
  uint64_t size_;   // bytes from start_ to the end that the file had in the constructor
};

class MemorySource final : public Source {
 public:
  explicit MemorySource(Bytes bytes) : bytes_(bytes) {}
  uint64_t size() const override { return bytes_.size(); }
  void read(uint64_t offset, WritableBytes to) const override;

 private:
  Bytes bytes_;
};

// Writes to a borrowed descriptor of a file or pipe. Starts early to write a file's bytes to the
// disk, so that the final sync is short.
class FileSink final : public ByteSink {
 public:
  explicit FileSink(int descriptor);
  void write(Bytes bytes) override;

 private:
  void start_writing_back();

  int descriptor_;
  bool is_file_;
  int64_t position_ = 0;  // offset of the next byte; only counted for a file
  int64_t sent_ = 0;      // offset up to which writing to the disk has started
};

// Buffers small writes to another sink.
class BufferedSink final : public ByteSink {
 public:
  explicit BufferedSink(ByteSink& sink);
  void write(Bytes bytes) override;
  void flush();

 private:
  ByteSink& sink_;
  std::vector<std::byte> buffer_;  // bytes that have not been written to sink_
};

// Counts the bytes that have been read or written, and reports them to a function.
class Progress {
 public:
  // A function that receives the number of bytes since its last call. The thread that waits for the
  // work calls it about every 50 ms. An exception from this function stops the work.
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
  // Reports the bytes since the last report.
  void finish() {
    if (report_) report_(std::exchange(bytes_, 0));
  }

  static constexpr auto kInterval = std::chrono::milliseconds(50);

 private:
  Report report_;
  uint64_t bytes_ = 0;  // bytes processed since the last report
  std::chrono::steady_clock::time_point latest_ = std::chrono::steady_clock::now();  // last report
};

}  // namespace fxpress::archive
