// Reads the records of an archive from the directory at the end of a zip file.
#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "archive/file.h"
#include "core/text_hash.h"

namespace fxpress::archive {

struct Record {
  std::string name;     // without the root
  uint64_t header = 0;  // offset of its header in the archive
  uint64_t end = 0;     // offset of what comes after its data: another header, or the directory
  uint64_t offset = 0;  // of its data; 0 until its header was read
  uint64_t stored = 0;  // bytes that the data takes there
  uint64_t size = 0;    // bytes when they are unpacked; `stored` unless is_deflated
  uint32_t crc = 0;     // of the unpacked bytes
  bool is_deflated = false;
};

// When the header in front of a record's data is read and compared with the directory.
enum class Headers : uint8_t { kAtOnce, kOnDemand };

// The records of an archive. Everything in it was compared with the file: a record's data is inside
// of it, no two share bytes, and the header in front of each says the same as the directory.
class Directory {
 public:
  // The source outlives the directory. ArchiveError for a file that is not a zip file, is
  // damaged, or has names that lead out of a folder.
  explicit Directory(const Source& source, Headers headers = Headers::kAtOnce);
  Directory(const Directory&) = delete;  // positions_ points into records_
  Directory& operator=(const Directory&) = delete;

  const std::vector<Record>& records() const { return records_; }
  // The record, without reading its header; null when there is none.
  const Record* find(std::string_view name) const;
  // The record after its header was read; null when there is none. ArchiveError when the header
  // differs from the directory.
  const Record* locate(std::string_view name);
  // The folder that all records are in; empty when they are in none.
  const std::string& root() const { return root_; }

 private:
  void strip_root();

  const Source& source_;
  std::vector<Record> records_;  // in the order of the directory
  std::string root_;
  core::TextViewMap<size_t> positions_;  // name -> position in records_
};

}  // namespace fxpress::archive
