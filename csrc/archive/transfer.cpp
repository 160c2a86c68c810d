#include "archive/transfer.h"

#include <algorithm>
#include <atomic>
#include <condition_variable>
#include <exception>
#include <mutex>

#include "core/crew.h"

namespace fxpress::archive {

namespace {

constexpr uint64_t kChunk = uint64_t{4} << 20;  // bytes that a thread takes at a time
constexpr uint64_t kWorthAThread = kChunk;      // minimum bytes per thread

struct Chunk {
  size_t transfer;  // position in the list of transfers
  uint64_t start;   // offset in the range of the transfer
  uint64_t size;
  uint32_t crc = 0;
};

std::vector<Chunk> chunks_of(const std::vector<Transfer>& transfers, uint64_t chunk) {
  std::vector<Chunk> chunks;
  for (size_t i = 0; i < transfers.size(); ++i) {
    const uint64_t size = transfers[i].size;
    uint64_t start = 0;
    do {  // an empty transfer still has one chunk
      chunks.push_back({i, start, std::min(chunk, size - start)});
      start += chunk;
    } while (start < size);
  }
  return chunks;
}

// The chunks of all transfers. Each of several threads takes one chunk at a time.
class Work {
 public:
  Work(const Source& source, const std::vector<Transfer>& transfers, bool check)
      : source_(source),
        transfers_(transfers),
        check_(check),
        piece_(source.piece()),
        chunks_(chunks_of(transfers, std::max<uint64_t>(kChunk, piece_))) {}

  // Transfers chunks until none are left or a thread fails. Stores an exception, for wait().
  void run() noexcept {
    try {
      std::vector<std::byte> scratch;
      for (size_t i = next_++; i < chunks_.size() && !stop_; i = next_++) {
        move(chunks_[i], scratch, [](uint64_t) {});
      }
    } catch (...) {
      const std::lock_guard lock(mutex_);
      if (!error_) error_ = std::current_exception();
      stop_ = true;
    }
    const std::lock_guard lock(mutex_);
    ++finished_;
    changed_.notify_all();
  }

  // Transfers all chunks in the calling thread.
  void run_here(Progress& progress) {
    std::vector<std::byte> scratch;
    for (Chunk& chunk : chunks_) {
      move(chunk, scratch, [&](uint64_t bytes) { progress.advance(bytes); });
    }
  }

  // Waits until `threads` threads have ended run(); rethrows their first error.
  void wait(size_t threads, const core::Crew& crew, Progress& progress) {
    uint64_t reported = 0;
    std::unique_lock lock(mutex_);
    while (finished_ < threads) {
      changed_.wait_for(lock, Progress::kInterval);
      lock.unlock();
      const uint64_t done = done_;
      progress.advance(done - reported);
      crew.check();
      reported = done;
      lock.lock();
    }
    if (error_) std::rethrow_exception(error_);
    progress.advance(done_ - reported);
  }

  void stop() { stop_ = true; }

  std::vector<uint32_t> checksums() const {
    if (!check_) return {};
    std::vector<uint32_t> result(transfers_.size());
    for (const Chunk& chunk : chunks_) {
      uint32_t& crc = result[chunk.transfer];
      crc = crc32_of_both(crc, chunk.crc, chunk.size);
    }
    return result;
  }

 private:
  template <class Report>
  void move(Chunk& chunk, std::vector<std::byte>& scratch, Report report) {
    const Transfer& transfer = transfers_[chunk.transfer];
    if (transfer.to == nullptr) scratch.resize(piece_);
    for (uint64_t at = 0; at < chunk.size && !stop_;) {
      const auto size = static_cast<size_t>(std::min<uint64_t>(piece_, chunk.size - at));
      const uint64_t from = chunk.start + at;
      const WritableBytes to(transfer.to == nullptr ? scratch.data() : transfer.to + from, size);
      source_.read(transfer.record->offset + transfer.start + from, to);
      if (check_) chunk.crc = crc32(chunk.crc, to);
      at += size;
      done_ += size;
      report(size);
    }
  }

  const Source& source_;
  const std::vector<Transfer>& transfers_;
  const bool check_;    // whether to compute checksums
  const size_t piece_;  // bytes per read
  std::vector<Chunk> chunks_;
  std::atomic<size_t> next_ = 0;     // position of the next chunk to transfer
  std::atomic<uint64_t> done_ = 0;   // bytes transferred by all threads
  std::atomic<bool> stop_ = false;   // a thread has failed, or stop() was called
  std::mutex mutex_;                 // guards finished_ and error_
  std::condition_variable changed_;  // notified when finished_ changes
  size_t finished_ = 0;              // threads that have ended run()
  std::exception_ptr error_;         // the first exception of a thread
};

}  // namespace

std::vector<uint32_t> transfer(const Source& source, const std::vector<Transfer>& transfers,
                               const TransferOptions& options, Progress& progress) {
  uint64_t total = 0;
  for (const Transfer& each : transfers) total += each.size;
  const size_t count = std::min<uint64_t>(options.threads, total / kWorthAThread);
  Work work(source, transfers, options.check);
  if (count < 2) {
    work.run_here(progress);
  } else {
    core::Crew crew;  // its destructor joins the threads
    try {
      for (size_t i = 0; i < count; ++i) crew.add([&work] { work.run(); });
      work.wait(count, crew, progress);
    } catch (...) {
      work.stop();
      throw;
    }
  }
  progress.finish();
  return work.checksums();
}

}  // namespace fxpress::archive
