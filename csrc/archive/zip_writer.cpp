#include "archive/zip_writer.h"

#include <algorithm>
#include <atomic>
#include <bit>
#include <concepts>
#include <functional>
#include <limits>
#include <system_error>

#include "archive/file.h"
#include "archive/record_name.h"
#include "archive/zip_format.h"
#include "core/crew.h"

namespace fxpress::archive {

namespace {

constexpr uint64_t kAlignment = 64;           // alignment of records' data, in bytes
constexpr size_t kPiece = size_t{1} << 20;    // bytes written between two progress reports
constexpr size_t kParallelSize = 4 * kPiece;  // minimum bytes of data for a copying thread
constexpr std::string_view kVersion = "6\n";  // content of torch's record .data/version
constexpr uint16_t kMadeBy = 0x031E;  // "made by" in the 64-bit end record, as miniz writes it
constexpr uint16_t kNeeds64 = 45;     // first version of the zip format with 64-bit fields

Bytes as_bytes(std::string_view text) {
  return std::as_bytes(std::span(text));
}

// Builds a structure of the zip format from fields in little-endian order.
class Fields {
 public:
  template <std::integral Number>
  Fields& add(Number value) {
    for (size_t i = 0; i < sizeof(Number); ++i) text_ += static_cast<char>(value >> (8 * i));
    return *this;
  }
  Fields& add(std::string_view text) {
    text_ += text;
    return *this;
  }
  const std::string& text() const { return text_; }

 private:
  std::string text_;
};

uint32_t in_32(uint64_t value) {
  return static_cast<uint32_t>(std::min<uint64_t>(value, kElsewhere32));
}

// Returns an extra field with each number that needs 64 bits (the size twice), or an empty text.
std::string extra_64(uint64_t size, uint64_t header) {
  Fields numbers;
  if (size >= kElsewhere32) numbers.add(size).add(size);
  if (header >= kElsewhere32) numbers.add(header);
  if (numbers.text().empty()) return {};
  return Fields()
      .add(kExtra64)
      .add(static_cast<uint16_t>(numbers.text().size()))
      .add(numbers.text())
      .text();
}

// Returns an extra field that aligns the data after it to 64 bytes. start: the field's offset. The
// field has 4 bytes and up to 63 bytes of filling.
std::string padding(uint64_t start) {
  const uint64_t size = (kAlignment - (start + 4) % kAlignment) % kAlignment;
  return Fields()
      .add(std::string_view("FB"))
      .add(static_cast<uint16_t>(size))
      .add(std::string(size, 'Z'))
      .text();
}

}  // namespace

// Copies bytes in pieces. The writer writes the copies, and their checksum matches even if another
// thread modifies the bytes. For large data, a second thread copies while the caller writes. The
// two threads wait only on atomics, so that a forked child never inherits a locked mutex.
class ZipWriter::Copies {
 public:
  Copies(uint32_t before, Bytes bytes, Buffers& buffers)
      : crc_(before),
        bytes_(bytes),
        buffers_(buffers),
        pieces_((bytes.size() + kPiece - 1) / kPiece) {
    if (bytes.size() < kParallelSize) return;
    for (std::vector<std::byte>& buffer : buffers) buffer.reserve(kPiece);
    try {
      crew_.add([this] { run(); });
      is_threaded_ = true;
    } catch (const std::system_error&) {
      is_threaded_ = false;  // next() makes the copies
    }
  }
  Copies(const Copies&) = delete;
  Copies& operator=(const Copies&) = delete;
  ~Copies() {
    requested_ = kStop;
    requested_.notify_all();
  }

  // Returns a copy of the next piece, valid until the next call; empty after the last piece.
  Bytes next() {
    const size_t number = requested_;
    if (number == pieces_) return {};
    if (!is_threaded_) copy_one(number);
    crew_.check();
    requested_ = number + 1;
    requested_.notify_all();
    for (size_t copied = copied_; copied <= number; copied = copied_) copied_.wait(copied);
    return buffers_[number % buffers_.size()];
  }

  // The checksum of all bytes, valid after next() has returned an empty piece.
  uint32_t crc() const { return crc_; }

 private:
  static constexpr size_t kStop = std::numeric_limits<size_t>::max();

  void copy_one(size_t number) {
    std::vector<std::byte>& buffer = buffers_[number % buffers_.size()];
    const Bytes piece = bytes_.first(std::min(bytes_.size(), kPiece));
    buffer.assign(piece.begin(), piece.end());
    crc_ = crc32(crc_, buffer);
    bytes_ = bytes_.subspan(piece.size());
    copied_ = number + 1;
    copied_.notify_all();
  }

  // Copies all pieces. Waits while a copy would overwrite the piece that the caller is writing.
  void run() {
    for (size_t i = 0; i < pieces_; ++i) {
      size_t requested = requested_;
      while (requested != kStop && i + 1 >= requested + buffers_.size()) {
        requested_.wait(requested);
        requested = requested_;
      }
      if (requested == kStop) return;
      copy_one(i);
    }
  }

  uint32_t crc_;
  Bytes bytes_;  // bytes that are not copied yet
  Buffers& buffers_;
  const size_t pieces_;
  bool is_threaded_ = false;
  std::atomic<size_t> requested_ = 0;  // pieces requested by next(); kStop in the destructor
  std::atomic<size_t> copied_ = 0;
  core::Crew crew_;  // the copying thread; declared last, so joined first
};

namespace {

uint64_t combine(uint64_t seed, uint64_t value) {  // the function c10::hash_combine of torch
  return seed ^ (value + 0x9e3779b9 + (seed << 6U) + (seed >> 2U));
}

std::string twenty_digits(uint64_t value) {
  const std::string digits = std::to_string(value);
  return std::string(20 - digits.size(), '0') + digits;
}

}  // namespace

ZipWriter::ZipWriter(ByteSink& sink, std::string root, Progress::Report report)
    : sink_(sink), root_(std::move(root)), progress_(std::move(report)) {}

void ZipWriter::write(Bytes bytes) {
  if (has_failed_) throw ArchiveError("the archive is incomplete: an earlier write failed");
  has_failed_ = true;
  sink_.write(bytes);
  has_failed_ = false;
  position_ += bytes.size();
}

size_t ZipWriter::count_records(std::string_view prefix) const {
  return static_cast<size_t>(std::ranges::count_if(
      names_written_, [&](const std::string& name) { return name.starts_with(prefix); }));
}

void ZipWriter::begin(std::string_view name, uint64_t size) {
  if (is_finished_) throw ArchiveError("the archive is finished: records cannot be added");
  if (is_open_) throw ArchiveError("record '" + entries_.back().path + "' is not ended yet");
  Entry entry{root_ + "/" + std::string(name), position_, size, 0};
  if (const char* why = problem_of_name(entry.path); name.empty() || why != nullptr) {
    throw ArchiveError("'" + std::string(name) + "' cannot be the name of a record" +
                       (why == nullptr ? "" : std::string(": it ") + why));
  }
  if (entry.path.size() > 0xFFFF) {
    throw ArchiveError("the name of a record has " + std::to_string(entry.path.size()) +
                       " bytes, expected at most 65535");
  }
  if (!names_written_.emplace(name).second) {
    throw ArchiveError("Tried to serialize file twice: " + std::string(name));
  }

  const std::string extra = extra_64(size, position_);
  const uint64_t start = position_ + kLocalHeaderSize + entry.path.size() + extra.size();
  const std::string filling = padding(start);
  Fields header;
  header.add(kLocalHeader)
      .add(uint16_t{0})  // version needed to extract; torch writes 0
      .add(static_cast<uint16_t>(kNameIsUtf8 | (size != 0 ? kHasDescriptor : 0)))
      .add(kStored)
      .add(uint32_t{0})  // no date and time
      .add(uint32_t{0})  // checksum and sizes follow in the descriptor
      .add(uint32_t{0})
      .add(uint32_t{0})
      .add(static_cast<uint16_t>(entry.path.size()))
      .add(static_cast<uint16_t>(extra.size() + filling.size()))
      .add(entry.path)
      .add(extra)
      .add(filling);
  entries_.push_back(std::move(entry));
  is_open_ = true;
  missing_ = size;
  write(as_bytes(header.text()));
}

void ZipWriter::append(Bytes bytes) {
  if (!is_open_) throw ArchiveError("no record is open: begin a record before its bytes");
  if (bytes.size() > missing_) {
    throw ArchiveError("record '" + entries_.back().path + "': expected at most " +
                       std::to_string(missing_) + " more bytes, got " +
                       std::to_string(bytes.size()));
  }
  Copies copies(entries_.back().crc, bytes, buffers_);
  for (Bytes piece = copies.next(); !piece.empty(); piece = copies.next()) {
    write(piece);
    missing_ -= piece.size();
    progress_.advance(piece.size());
  }
  entries_.back().crc = copies.crc();
}

void ZipWriter::end() {
  if (!is_open_) throw ArchiveError("no record is open: begin a record before its end");
  if (missing_ != 0) {
    throw ArchiveError("record '" + entries_.back().path +
                       "' is incomplete: " + std::to_string(missing_) + " bytes are missing");
  }
  is_open_ = false;
  const Entry& entry = entries_.back();
  if (entry.size == 0) return;
  combined_crc_ = combine(combined_crc_, entry.crc);
  Fields descriptor;
  descriptor.add(kDataDescriptor).add(entry.crc);
  if (entry.size >= kElsewhere32 || entry.header >= kElsewhere32) {
    descriptor.add(entry.size).add(entry.size);
  } else {
    descriptor.add(static_cast<uint32_t>(entry.size)).add(static_cast<uint32_t>(entry.size));
  }
  write(as_bytes(descriptor.text()));
}

void ZipWriter::add(std::string_view name, std::string_view text) {
  begin(name, text.size());
  append(as_bytes(text));
  end();
}

std::string ZipWriter::serialization_id() const {
  uint64_t combined_names = 0;
  for (const std::string& name : names_written_) {
    combined_names = combine(combined_names, std::hash<std::string>()(name));
  }
  return twenty_digits(combined_names) + twenty_digits(combined_crc_);
}

void ZipWriter::finish() {
  if (!names_written_.contains(kVersionRecord) && !names_written_.contains("version")) {
    add(kVersionRecord, kVersion);
  }
  if (!names_written_.contains(kByteOrderRecord)) {
    add(kByteOrderRecord, std::endian::native == std::endian::little ? "little" : "big");
  }
  if (!names_written_.contains(kSerializationIdRecord)) {
    add(kSerializationIdRecord, serialization_id());
  }
  const uint64_t directory = position_;
  for (const Entry& entry : entries_) write_central_header(entry);
  write_end(directory);
  has_failed_ = true;
  sink_.flush();
  has_failed_ = false;
  is_finished_ = true;
  progress_.finish();
}

void ZipWriter::write_central_header(const Entry& entry) {
  const std::string extra = extra_64(entry.size, entry.header);
  Fields header;
  header.add(kCentralHeader)
      .add(uint16_t{0})  // made by, version needed; torch writes 0
      .add(uint16_t{0})
      .add(static_cast<uint16_t>(kNameIsUtf8 | (entry.size != 0 ? kHasDescriptor : 0)))
      .add(kStored)
      .add(uint32_t{0})
      .add(entry.crc)
      .add(in_32(entry.size))
      .add(in_32(entry.size))
      .add(static_cast<uint16_t>(entry.path.size()))
      .add(static_cast<uint16_t>(extra.size()))
      .add(uint16_t{0})  // no comment, first disk, no attributes
      .add(uint16_t{0})
      .add(uint16_t{0})
      .add(uint32_t{0})
      .add(in_32(entry.header))
      .add(entry.path)
      .add(extra);
  write(as_bytes(header.text()));
}

void ZipWriter::write_end(uint64_t directory) {
  const uint64_t size = position_ - directory;
  const uint64_t count = entries_.size();
  const auto count_in_16 = static_cast<uint16_t>(std::min<uint64_t>(count, kElsewhere16));
  const uint64_t end_64 = position_;
  Fields end;
  end.add(kEnd64)
      .add(uint64_t{kEnd64Size - 12})  // bytes of the end record after this field
      .add(kMadeBy)
      .add(kNeeds64)
      .add(uint32_t{0})
      .add(uint32_t{0})
      .add(count)
      .add(count)
      .add(size)
      .add(directory);
  end.add(kEnd64Locator).add(uint32_t{0}).add(end_64).add(uint32_t{1});
  end.add(kEnd)
      .add(uint16_t{0})
      .add(uint16_t{0})
      .add(count_in_16)
      .add(count_in_16)
      .add(in_32(size))
      .add(in_32(directory))
      .add(uint16_t{0});
  write(as_bytes(end.text()));
}

}  // namespace fxpress::archive
