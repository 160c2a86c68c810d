// The sources and sinks of an archive's bytes: open files and memory.
#pragma once

#include <cstdint>
#include <vector>

#include "archive/crc32.h"

namespace fxpress::archive {

using WritableBytes = std::span<std::byte>;

// Bytes that are read, from any number of threads.
class Source {
 public:
  virtual ~Source() = default;
  virtual uint64_t size() const = 0;
  // Fills `to` with the bytes from `offset` on; ArchiveError when there are fewer.
  virtual void read(uint64_t offset, WritableBytes to) const = 0;
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

}  // namespace fxpress::archive
