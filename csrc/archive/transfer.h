// Reads the data of records into memory, on several threads, with their checksums.
#pragma once

#include <vector>

#include "archive/directory.h"
#include "archive/file.h"

namespace fxpress::archive {

// Some of the bytes of a record.
struct Transfer {
  const Record* record;     // not deflated
  uint64_t start = 0;       // in the record's data
  uint64_t size = 0;        // bytes; they are inside of the record
  std::byte* to = nullptr;  // where they go; null: they are only read
};

struct TransferOptions {
  bool check = true;   // the checksums
  size_t threads = 1;  // at most
};

// The checksum of the bytes of each transfer (none without a check). When it throws, any of the
// destinations may have been written to.
std::vector<uint32_t> transfer(const Source& source, const std::vector<Transfer>& transfers,
                               const TransferOptions& options, Progress& progress);

}  // namespace fxpress::archive
