// Asks the system for large pages for a block of memory that will be filled completely.
#pragma once

#include <sys/mman.h>

#include <cstddef>
#include <cstdint>

namespace fxpress::tensor {

inline constexpr uintptr_t kLargePage = uintptr_t{1} << 21;  // bytes

// Requests large pages for a block that was not written to yet. A gigabyte needs a quarter of a
// million small pages, and mapping them costs more time than filling them. The call is only a hint.
inline void prefer_large_pages(void* memory, size_t size) {
#ifdef MADV_HUGEPAGE
  const auto begin =
      (reinterpret_cast<uintptr_t>(memory) + kLargePage - 1) / kLargePage * kLargePage;
  const auto end = (reinterpret_cast<uintptr_t>(memory) + size) / kLargePage * kLargePage;
  if (end > begin) madvise(reinterpret_cast<void*>(begin), end - begin, MADV_HUGEPAGE);
#endif
}

}  // namespace fxpress::tensor
