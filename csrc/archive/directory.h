// Reads the records of an archive from the directory at the end of a zip file.
#pragma once

#include <string>
#include <string_view>
#include <unordered_map>
#include <vector>

#include "archive/file.h"

namespace fxpress::archive {

struct Record {
  std::string name;     // without the root
  uint64_t offset = 0;  // of its data in the archive
  uint64_t stored = 0;  // bytes that the data takes there
  uint64_t size = 0;    // bytes when they are unpacked; `stored` unless is_deflated
  uint32_t crc = 0;     // of the unpacked bytes
  bool is_deflated = false;
};

// The records of an archive. Everything in it was compared with the file: a record's data is inside
// of it, no two share bytes, and the header in front of each says the same as the directory.
class Directory {
 public:
  // ArchiveError for what is no zip file, is damaged, or has names that lead out of a folder.
  explicit Directory(const Source& source);
  Directory(const Directory&) = delete;  // positions_ points into records_
  Directory& operator=(const Directory&) = delete;

  const std::vector<Record>& records() const { return records_; }
  // Null when there is none.
  const Record* find(std::string_view name) const;
  // The folder that all records are in; empty when they are in none.
  const std::string& root() const { return root_; }

 private:
  void strip_root();

  std::vector<Record> records_;  // in the order of the directory
  std::string root_;
  std::unordered_map<std::string_view, size_t> positions_;  // name -> position in records_
};

}  // namespace fxpress::archive
