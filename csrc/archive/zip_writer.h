// Writes an archive as torch's PyTorchFileWriter does: a zip file, nothing compressed, the data of
// every record at a multiple of 64 bytes.
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
  // root: the folder that all records are in.
  ZipWriter(ByteSink& sink, std::string root, Progress::Report report);

  // A record, in pieces: begin, any number of appends, end. ArchiveError when there is one of that
  // name already, or when the pieces are not `size` bytes together.
  void begin(std::string_view name, uint64_t size);
  void append(Bytes bytes);
  void end();

  // The records about the archive itself, and the directory. Nothing can be written afterwards, nor
  // after an error of the sink.
  void finish();

  // Names of records have no root.
  bool has_record(const std::string& name) const { return names_written_.contains(name); }
  size_t count_records(std::string_view prefix) const;
  bool is_finished() const { return is_finished_; }

 private:
  using Buffers = std::array<std::vector<std::byte>, 3>;
  class Copies;
  struct Entry {
    std::string path;     // with the root
    uint64_t header = 0;  // where its header begins
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
  Buffers buffers_;        // for the pieces of what is written
  uint64_t position_ = 0;  // bytes written
  uint64_t missing_ = 0;   // bytes of the open record that are still to come
  bool is_open_ = false;   // a record
  bool is_finished_ = false;
  bool has_failed_ = false;  // a write: what the sink has is not known
  std::vector<Entry> entries_;
  // A set of the same kind as torch's: the serialization id depends on its order.
  std::unordered_set<std::string> names_written_;
  uint64_t combined_crc_ = 0;  // of all records that are not empty
};

}  // namespace fxpress::archive
