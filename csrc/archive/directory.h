// Reads the records of an archive from the directory at the end of a zip file.
#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "archive/file.h"
#include "core/text_hash.h"

namespace fxpress::archive {

struct Record {
  std::string name;     // path below the root folder
  uint64_t header = 0;  // offset of the record's local header in the archive
  uint64_t end = 0;     // offset of the next record's header, or of the directory
  uint64_t offset = 0;  // offset of the record's data; 0 until the local header has been read
  uint64_t stored = 0;  // bytes of the data in the archive
  uint64_t size = 0;    // bytes of the unpacked data; equals `stored` if not is_deflated
  uint32_t crc = 0;     // CRC-32 of the unpacked bytes
  bool is_deflated = false;
};

// Whether a Directory checks all local headers in its constructor, or each one in locate().
enum class Headers : uint8_t { kAtOnce, kOnDemand };

// The validated records of an archive: the data of each record is inside the archive and does not
// overlap the data of another record.
class Directory {
 public:
  // Throws ArchiveError if the source is not a zip file, is damaged, or has a record whose path
  // leads out of a folder. The source must outlive this object.
  explicit Directory(const Source& source, Headers headers = Headers::kAtOnce);
  Directory(const Directory&) = delete;  // positions_ points into records_
  Directory& operator=(const Directory&) = delete;

  const std::vector<Record>& records() const { return records_; }
  // Returns the record named `name` without reading its local header; null if it does not exist.
  const Record* find(std::string_view name) const;
  // Returns the record named `name` after checking its local header; null if it does not exist.
  // Throws ArchiveError if the local header differs from the directory.
  const Record* locate(std::string_view name);
  // The folder that contains all records; empty if no such folder exists.
  const std::string& root() const { return root_; }

 private:
  void strip_root();

  const Source& source_;
  std::vector<Record> records_;  // in the order of the directory
  std::string root_;
  core::TextViewMap<size_t> positions_;  // from names to positions in records_
};

}  // namespace fxpress::archive
