#include "archive/file.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <system_error>

namespace fxpress::archive {

namespace {

constexpr size_t kBuffered = size_t{1} << 18;  // maximum bytes in the buffer of a BufferedSink
constexpr size_t kOneCall = size_t{1} << 30;   // maximum bytes per call; Linux allows almost 2^31
constexpr int64_t kSentTogether = int64_t{1} << 25;  // bytes between two calls of sync_file_range()

[[noreturn]] void fail(const char* what) {
  throw std::system_error(errno, std::generic_category(), what);
}

[[noreturn]] void end_of_file() {
  throw ArchiveError("the file is truncated");
}

}  // namespace

FileSource::FileSource(int descriptor, uint64_t start) : descriptor_(descriptor), start_(start) {
  struct stat about{};
  if (fstat(descriptor, &about) != 0) fail("fstat");
  const auto end = static_cast<uint64_t>(std::max<off_t>(about.st_size, 0));
  size_ = end - std::min(end, start);
}

void FileSource::read(uint64_t offset, WritableBytes to) const {
  if (offset > size_ || to.size() > size_ - offset) end_of_file();
  while (!to.empty()) {
    const ssize_t got = pread(descriptor_, to.data(), std::min(to.size(), kOneCall),
                              static_cast<off_t>(start_ + offset));
    if (got < 0 && errno == EINTR) continue;
    if (got < 0) fail("read");
    if (got == 0) end_of_file();  // the file was truncated after it was opened
    offset += static_cast<uint64_t>(got);
    to = to.subspan(static_cast<size_t>(got));
  }
}

void MemorySource::read(uint64_t offset, WritableBytes to) const {
  if (offset > bytes_.size() || to.size() > bytes_.size() - offset) end_of_file();
  if (!to.empty()) std::memcpy(to.data(), bytes_.data() + offset, to.size());
}

FileSink::FileSink(int descriptor) : descriptor_(descriptor) {
  const off_t position = lseek(descriptor, 0, SEEK_CUR);
  is_file_ = position >= 0;
  if (is_file_) position_ = sent_ = position;
}

void FileSink::start_writing_back() {
#ifdef __linux__
  if (!is_file_ || position_ - sent_ < kSentTogether) return;
  // Errors are ignored, because the final sync writes all bytes in any case.
  sync_file_range(descriptor_, sent_, position_ - sent_, SYNC_FILE_RANGE_WRITE);
  sent_ = position_;
#endif
}

void FileSink::write(Bytes bytes) {
  while (!bytes.empty()) {
    const ssize_t done = ::write(descriptor_, bytes.data(), std::min(bytes.size(), kOneCall));
    if (done < 0 && errno == EINTR) continue;
    if (done < 0) fail("write");
    bytes = bytes.subspan(static_cast<size_t>(done));
    position_ += done;
    start_writing_back();
  }
}

BufferedSink::BufferedSink(ByteSink& sink) : sink_(sink) {
  buffer_.reserve(kBuffered);
}

void BufferedSink::write(Bytes bytes) {
  if (buffer_.size() + bytes.size() > kBuffered) flush();
  if (bytes.size() >= kBuffered) {
    sink_.write(bytes);
  } else {
    buffer_.insert(buffer_.end(), bytes.begin(), bytes.end());
  }
}

void BufferedSink::flush() {
  if (buffer_.empty()) return;
  sink_.write(buffer_);
  buffer_.clear();
}

}  // namespace fxpress::archive
