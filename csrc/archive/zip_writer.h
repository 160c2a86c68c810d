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
  // root: the folder for all records.
  ZipWriter(ByteSink& sink, std::string root, Progress::Report report);

  // Writes a record in pieces: begin, any number of appends, end. ArchiveError if the name exists
  // already or the pieces do not add up to `size` bytes.
  void begin(std::string_view name, uint64_t size);
  void append(Bytes bytes);
  void end();

  // Writes the records of kRecordsOfWriter that are not written yet, then the directory. After this
  // call, and after an error of the sink, nothing can be written.
  void finish();

  // `name` and `prefix` do not include the root folder.
  bool has_record(const std::string& name) const { return names_written_.contains(name); }
  size_t count_records(std::string_view prefix) const;
  bool is_finished() const { return is_finished_; }

 private:
  using Buffers = std::array<std::vector<std::byte>, 3>;
  class Copies;
  struct Entry {
    std::string path;     // path of the record, including the root folder
    uint64_t header = 0;  // offset of its local header
    uint64_t size = 0;    // bytes
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
  Buffers buffers_;        // copies of the pieces that are written next
  uint64_t position_ = 0;  // bytes written
  uint64_t missing_ = 0;   // bytes of the open record that have not been appended
  bool is_open_ = false;   // whether a record is open: after begin(), before end()
  bool is_finished_ = false;
  bool has_failed_ = false;  // a write failed, so the sink's state is unknown
  std::vector<Entry> entries_;
  // The same set type as torch's: the serialization id depends on its iteration order.
  std::unordered_set<std::string> names_written_;
  uint64_t combined_crc_ = 0;  // combines the checksums of all non-empty records
};

}  // namespace fxpress::archive
