// libFuzzer: any bytes are an archive, whose records are inside of them and can be read, or are
// refused.
#include <cstdint>
#include <cstdlib>

#include "archive/directory.h"
#include "archive/file.h"
#include "archive/transfer.h"

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  using namespace fxpress::archive;
  const MemorySource source(std::as_bytes(std::span(data, size)));
  try {
    const Directory directory(source);
    std::vector<Transfer> transfers;
    for (const Record& record : directory.records()) {
      if (record.offset > size || record.stored > size - record.offset) std::abort();
      if (directory.find(record.name) != &record) std::abort();
      if (!record.is_deflated) transfers.push_back({&record, 0, record.size, nullptr});
    }
    Progress progress(nullptr);
    transfer(source, transfers, {}, progress);
  } catch (const ArchiveError&) {
    return 0;
  }
  return 0;
}
