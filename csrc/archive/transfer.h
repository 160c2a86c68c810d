// The data of records into memory, on several threads, with their checksums.
#pragma once

#include <vector>

#include "archive/directory.h"
#include "archive/progress.h"

namespace fxpress::archive {

struct Transfer {
  const Record* record;     // not deflated
  std::byte* to = nullptr;  // where its bytes go; null: they are only checked
};

struct TransferOptions {
  bool check = true;   // the checksums
  size_t threads = 1;  // at most
};

// The transfers whose checksum is not that of the directory (none without a check). When it throws,
// any of the destinations may have been written to.
std::vector<size_t> transfer(const Source& source, const std::vector<Transfer>& transfers,
                             const TransferOptions& options, Progress& progress);

}  // namespace fxpress::archive
