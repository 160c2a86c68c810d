#include "archive/directory.h"

#include <algorithm>
#include <array>
#include <cstring>

#include "archive/file.h"
#include "archive/record_name.h"
#include "archive/zip_format.h"

namespace fxpress::archive {

namespace {

constexpr uint64_t kMaxComment = 0xFFFF;
constexpr uint64_t kMaxDirectory = uint64_t{1} << 32;  // maximum bytes; about 40 million records
constexpr uint64_t kMaxRatio = 1032;  // maximum bytes that one deflated byte unpacks to

[[noreturn]] void no_archive(const std::string& why) {
  throw ArchiveError("the file is not a zip archive, or is damaged: " + why);
}

[[noreturn]] void damaged(const std::string& name, const std::string& why) {
  throw ArchiveError("record '" + name + "' is damaged: " + why);
}

// Takes little-endian numbers from the front of a sequence of bytes.
class Numbers {
 public:
  explicit Numbers(Bytes bytes) : bytes_(bytes) {}

  template <class Number>
  Number take() {
    uint64_t value = 0;
    const Bytes taken = take_bytes(sizeof(Number));
    for (size_t i = 0; i < taken.size(); ++i) {
      value |= std::to_integer<uint64_t>(taken[i]) << (8 * i);
    }
    return static_cast<Number>(value);
  }
  Bytes take_bytes(size_t count) {
    if (bytes_.size() < count) no_archive("its directory is truncated");
    const Bytes taken = bytes_.first(count);
    bytes_ = bytes_.subspan(count);
    return taken;
  }
  size_t left() const { return bytes_.size(); }

 private:
  Bytes bytes_;
};

std::string_view as_text(Bytes bytes) {
  return {reinterpret_cast<const char*>(bytes.data()), bytes.size()};
}

// The location and the record count of the directory, from the end records of the zip file.
struct Extent {
  uint64_t offset = 0;
  uint64_t size = 0;  // bytes
  uint64_t count = 0;
  uint64_t end = 0;  // offset of the end record, or of the 64-bit end record if it exists
};

// Caches the last bytes of another source, which often contain the entire directory.
class Tail final : public Source {
 public:
  explicit Tail(const Source& source)
      : source_(source), bytes_(std::min(source.size(), kEndSize + kMaxComment)) {
    source.read(source.size() - bytes_.size(), bytes_);
  }
  uint64_t size() const override { return source_.size(); }
  size_t piece() const override { return source_.piece(); }
  Bytes bytes() const { return bytes_; }
  void read(uint64_t offset, WritableBytes to) const override {
    const uint64_t begin = size() - bytes_.size();
    if (offset > size() || to.size() > size() - offset) return source_.read(offset, to);  // throws
    const uint64_t before = offset < begin ? std::min<uint64_t>(begin - offset, to.size()) : 0;
    if (before != 0) source_.read(offset, to.first(before));
    if (before == to.size()) return;
    std::memcpy(to.data() + before, bytes_.data() + (offset + before - begin), to.size() - before);
  }

 private:
  const Source& source_;
  std::vector<std::byte> bytes_;  // the last bytes of source_
};

// Fills `extent` from the 64-bit end record. Returns false if no 64-bit locator ends at `end`.
bool find_end_64(const Source& source, uint64_t end, Extent& extent) {
  if (end < kEnd64LocatorSize + kEnd64Size) return false;
  std::array<std::byte, kEnd64LocatorSize> locator_bytes{};
  source.read(end - kEnd64LocatorSize, locator_bytes);
  Numbers locator(locator_bytes);
  if (locator.take<uint32_t>() != kEnd64Locator) return false;
  locator.take<uint32_t>();
  const auto at = locator.take<uint64_t>();
  if (at > end - kEnd64LocatorSize - kEnd64Size)
    no_archive("the offset of its end record is out of range");
  std::array<std::byte, kEnd64Size> end_bytes{};
  source.read(at, end_bytes);
  Numbers fields(end_bytes);
  if (fields.take<uint32_t>() != kEnd64) no_archive("its end record is damaged");
  fields.take_bytes(20);
  extent.count = fields.take<uint64_t>();
  if (fields.take<uint64_t>() != extent.count) no_archive("it is split into several parts");
  extent.size = fields.take<uint64_t>();
  extent.offset = fields.take<uint64_t>();
  extent.end = at;
  return true;
}

Extent find_directory(const Tail& source) {
  const Bytes tail = source.bytes();
  const uint64_t size = source.size();
  if (size < kEndSize) no_archive("it has only " + std::to_string(size) + " bytes");
  for (size_t at = tail.size() - kEndSize + 1; at-- > 0;) {
    Numbers fields(tail.subspan(at));
    if (fields.take<uint32_t>() != kEnd) continue;
    fields.take_bytes(6);  // disk numbers, and the number of records on this disk
    Extent extent;
    extent.count = fields.take<uint16_t>();
    extent.size = fields.take<uint32_t>();
    extent.offset = fields.take<uint32_t>();
    const auto comment = fields.take<uint16_t>();
    if (comment != fields.left()) continue;  // these bytes are part of a comment, not an end record
    extent.end = size - tail.size() + at;
    find_end_64(source, extent.end, extent);
    if (extent.offset > extent.end || extent.size > extent.end - extent.offset) {
      no_archive("its directory is out of range");
    }
    if (extent.size > kMaxDirectory) no_archive("its directory is too large");
    if (extent.count > extent.size / kCentralHeaderSize) {
      no_archive("its directory is too small for its records");
    }
    return extent;
  }
  no_archive("it does not have a directory");
}

// The fields that the local and the central header have in common.
struct Header {
  uint16_t flags = 0;
  uint16_t method = 0;
  uint32_t crc = 0;
  uint64_t stored = 0;
  uint64_t size = 0;
  uint16_t name_size = 0;
  uint16_t extra_size = 0;
};

Header take_header(Numbers& fields) {
  Header header;
  fields.take<uint16_t>();  // version needed to extract
  header.flags = fields.take<uint16_t>();
  header.method = fields.take<uint16_t>();
  fields.take<uint32_t>();  // date and time
  header.crc = fields.take<uint32_t>();
  header.stored = fields.take<uint32_t>();
  header.size = fields.take<uint32_t>();
  header.name_size = fields.take<uint16_t>();
  header.extra_size = fields.take<uint16_t>();
  return header;
}

// Reads the extra field with tag kExtra64. It contains each number that does not fit into 32 bits.
void take_extra_64(Bytes extra, Header& header, uint64_t& offset) {
  Numbers fields(extra);
  while (fields.left() >= 4) {
    const auto tag = fields.take<uint16_t>();
    const auto size = fields.take<uint16_t>();
    if (size > fields.left()) return;  // the remaining bytes are padding, not a field
    Numbers field(fields.take_bytes(size));
    if (tag != kExtra64) continue;
    for (uint64_t* number : {&header.size, &header.stored, &offset}) {
      if (*number == kElsewhere32) *number = field.take<uint64_t>();
    }
  }
}

void check_name(std::string_view path, uint64_t header) {
  const std::string_view file = path.ends_with('/') ? path.substr(0, path.size() - 1) : path;
  if (const char* why = problem_of_name(file)) {
    damaged(std::string(path),
            std::string("its name ") + why + "; its header is at byte " + std::to_string(header));
  }
}

// Returns the offset of a record's data. Throws ArchiveError if the local header contradicts
// `record`. path: the record's name with the root folder. bytes: a buffer for reuse.
uint64_t read_local_header(const Source& source, const Record& record, std::string_view path,
                           std::vector<std::byte>& bytes) {
  bytes.resize(kLocalHeaderSize + path.size());
  source.read(record.header, bytes);
  Numbers fields(bytes);
  if (fields.take<uint32_t>() != kLocalHeader) damaged(record.name, "it does not have a header");
  const Header found = take_header(fields);
  const std::string_view name =
      as_text(fields.take_bytes(std::min<size_t>(found.name_size, fields.left())));
  const uint64_t header_size = kLocalHeaderSize + found.name_size + found.extra_size;
  const uint64_t space = record.end - record.header;
  if (header_size > space || record.stored > space - header_size) {
    damaged(record.name, "its data is out of range, or belongs to another record too");
  }
  if (found.name_size != path.size() || name != path ||
      found.method != (record.is_deflated ? kDeflated : kStored)) {
    damaged(record.name, "its header belongs to '" + std::string(name) + "'");
  }
  return record.header + header_size;
}

// Takes the next record of the directory. Its `name` includes the root folder.
Record take_record(Numbers& fields) {
  if (fields.take<uint32_t>() != kCentralHeader) no_archive("its directory is damaged");
  const auto made_by = fields.take<uint16_t>();
  Header header = take_header(fields);
  const auto comment_size = fields.take<uint16_t>();
  fields.take<uint32_t>();  // disk, internal attributes
  const auto attributes = fields.take<uint32_t>();
  uint64_t offset = fields.take<uint32_t>();
  const std::string_view path = as_text(fields.take_bytes(header.name_size));
  take_extra_64(fields.take_bytes(header.extra_size), header, offset);
  fields.take_bytes(comment_size);

  check_name(path, offset);
  Record record{.name = std::string(path),
                .header = offset,
                .stored = header.stored,
                .size = header.size,
                .crc = header.crc,
                .is_deflated = header.method == kDeflated};
  constexpr uint32_t kUnix = 3;
  constexpr uint32_t kIsLink = 0xA;
  if (made_by >> 8 == kUnix && attributes >> 28 == kIsLink) {
    damaged(record.name, "it is a symbolic link");
  }
  if ((header.flags & kIsEncrypted) != 0) damaged(record.name, "it is encrypted");
  if (header.method != kStored && header.method != kDeflated) {
    damaged(record.name,
            "compression method " + std::to_string(header.method) + " is not supported");
  }
  if (header.method == kStored && header.stored != header.size) {
    damaged(record.name, "it is not compressed, but has " + std::to_string(header.stored) +
                             " stored bytes, expected " + std::to_string(header.size));
  }
  if (header.method == kDeflated && header.size / kMaxRatio > header.stored) {
    damaged(record.name, "its " + std::to_string(header.stored) +
                             " compressed bytes cannot contain " + std::to_string(header.size) +
                             " bytes");
  }
  return record;
}

// Sets Record::end of each record. Throws ArchiveError if a record's data overlaps another record
// or exceeds the archive. directory: the offset of the directory. Names include the root folder.
void find_ends(std::vector<Record>& records, uint64_t directory) {
  std::vector<Record*> sorted;
  sorted.reserve(records.size());
  for (Record& record : records) sorted.push_back(&record);
  if (!std::ranges::is_sorted(sorted, {}, &Record::header)) {
    std::ranges::stable_sort(sorted, {}, &Record::header);
  }
  const Record* next = nullptr;
  for (auto at = sorted.rbegin(); at != sorted.rend(); ++at) {  // Clang 14 has no views::reverse
    Record* const record = *at;
    record->end = next == nullptr ? directory : next->header;
    const uint64_t header_size = kLocalHeaderSize + record->name.size();
    if (record->header > record->end || record->end - record->header < header_size ||
        record->end - record->header - header_size < record->stored) {
      if (next == nullptr) damaged(record->name, "its data is out of range");
      damaged(next->name, "its data overlaps '" + record->name + "'");
    }
    next = record;
  }
}

// Reads the directory in pieces, so that the source can fail before all memory is allocated.
std::vector<std::byte> read_directory(const Source& source, const Extent& extent) {
  constexpr size_t kPart = size_t{16} << 20;
  std::vector<std::byte> bytes;
  while (bytes.size() < extent.size) {
    const size_t done = bytes.size();
    bytes.resize(std::min<uint64_t>(done + kPart, extent.size));
    source.read(extent.offset + done, WritableBytes(bytes).subspan(done));
  }
  return bytes;
}

}  // namespace

Directory::Directory(const Source& source, Headers headers) : source_(source) {
  const Tail tail(source);
  const Extent extent = find_directory(tail);
  const std::vector<std::byte> bytes = read_directory(tail, extent);
  Numbers fields(bytes);
  records_.reserve(extent.count);
  for (uint64_t i = 0; i < extent.count; ++i) {
    Record record = take_record(fields);
    if (!record.name.ends_with('/')) records_.push_back(std::move(record));  // not a folder
  }
  if (fields.left() != 0) no_archive("its directory has bytes after its last record");
  find_ends(records_, extent.offset);
  if (headers == Headers::kAtOnce) {
    std::vector<std::byte> space;
    for (Record& record : records_) {
      record.offset = read_local_header(source, record, record.name, space);
    }
  }
  strip_root();
  positions_.reserve(records_.size());
  for (size_t i = 0; i < records_.size(); ++i) {
    if (!positions_.emplace(records_[i].name, i).second) {
      damaged(records_[i].name, "another record has the same name");
    }
  }
}

void Directory::strip_root() {
  if (records_.empty()) return;
  const std::string& first = records_.front().name;
  const size_t slash = first.find('/');
  if (slash == std::string::npos) return;
  const std::string prefix = first.substr(0, slash + 1);
  const auto is_inside = [&](const Record& record) {
    return record.name.starts_with(prefix) && record.name.size() > prefix.size();
  };
  if (!std::ranges::all_of(records_, is_inside)) return;
  for (Record& record : records_) record.name.erase(0, prefix.size());
  root_ = prefix.substr(0, slash);
}

const Record* Directory::find(std::string_view name) const {
  const auto found = positions_.find(name);
  return found == positions_.end() ? nullptr : &records_[found->second];
}

const Record* Directory::locate(std::string_view name) {
  const auto found = positions_.find(name);
  if (found == positions_.end()) return nullptr;
  Record& record = records_[found->second];
  if (record.offset == 0) {
    const std::string path = root_.empty() ? record.name : root_ + "/" + record.name;
    std::vector<std::byte> space;
    record.offset = read_local_header(source_, record, path, space);
  }
  return &record;
}

}  // namespace fxpress::archive
