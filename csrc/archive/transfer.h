// Reads the data of records into memory on several threads, and computes checksums.
#pragma once

#include <vector>

#include "archive/directory.h"
#include "archive/file.h"

namespace fxpress::archive {

// A range of a record's data to read.
struct Transfer {
  const Record* record;     // a record that is not deflated
  uint64_t start = 0;       // offset in the record's data
  uint64_t size = 0;        // bytes of the range, which must be within the data
  std::byte* to = nullptr;  // destination; if null, only the checksum is computed
};

struct TransferOptions {
  bool check = true;   // compute the checksums of the ranges
  size_t threads = 1;  // maximum number of threads
};

// Reads all ranges. Returns one checksum per range, or an empty vector if `options.check` is false.
// After an exception, the contents of all destinations are unspecified.
std::vector<uint32_t> transfer(const Source& source, const std::vector<Transfer>& transfers,
                               const TransferOptions& options, Progress& progress);

}  // namespace fxpress::archive
