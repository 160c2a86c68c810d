// Writes an archive like torch's PyTorchFileWriter: an uncompressed zip file in which the data of
// each record is aligned to 64 bytes.
#pragma once

#include <array>
#include <string>
#include <string_view>
#include <unordered_set>
#include <vector>

#include "archive/file.h"

namespace fxpress::archive {

class ZipWriter {
 public:
  // root: the folder that will contain all records.
  ZipWriter(ByteSink& sink, std::string root, Progress::Report report);

  // These three calls write a record: begin(), any number of append(), end(). ArchiveError is
  // thrown if a record named `name` exists, or if the appended bytes are not exactly `size` bytes.
  void begin(std::string_view name, uint64_t size);
  void append(Bytes bytes);
  void end();

  // Writes the missing records of kRecordsOfWriter, then the directory. After this call, and after
  // an error of the sink, nothing can be written.
  void finish();

  // `name` and `prefix` do not start with the root folder.
  bool has_record(const std::string& name) const { return names_written_.contains(name); }
  size_t count_records(std::string_view prefix) const;
  bool is_finished() const { return is_finished_; }

 private:
  using Buffers = std::array<std::vector<std::byte>, 3>;
  class Copies;
  struct Entry {
    std::string path;     // path of the record, including the root folder
    uint64_t header = 0;  // offset of the record's local header
    uint64_t size = 0;    // bytes of the record's data
    uint32_t crc = 0;
  };
  void add(std::string_view name, std::string_view text);
  void write(Bytes bytes);
  void write_central_header(const Entry& entry);
  void write_end(uint64_t directory);
  std::string serialization_id() const;

  BufferedSink sink_;
  std::string root_;
  Progress progress_;
  Buffers buffers_;        // copies of the pieces to write next
  uint64_t position_ = 0;  // bytes written
  uint64_t missing_ = 0;   // bytes of the open record that have not been appended
  bool is_open_ = false;   // whether a record is open: after begin(), before end()
  bool is_finished_ = false;
  bool has_failed_ = false;  // whether a write failed, so that the sink's state is unknown
  std::vector<Entry> entries_;
  // The set type of PyTorchFileWriter: the serialization id depends on the set's iteration order.
  std::unordered_set<std::string> names_written_;
  uint64_t combined_crc_ = 0;  // hash of the checksums of all non-empty records
};

}  // namespace fxpress::archive
