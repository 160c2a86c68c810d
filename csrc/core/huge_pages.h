// Large pages for large memory: the system maps and clears them in fewer steps.
#pragma once

#include <cstddef>
#include <cstdint>

#ifdef __linux__
#include <sys/mman.h>
#endif

namespace fxpress::core {

// Asks for them in the middle of `size` bytes at `data`; nothing happens where there are none.
inline void prefer_huge_pages([[maybe_unused]] void* data, [[maybe_unused]] size_t size) {
#ifdef MADV_HUGEPAGE
  constexpr uintptr_t kPage = uintptr_t{1} << 21;
  const uintptr_t begin = (reinterpret_cast<uintptr_t>(data) + kPage - 1) & ~(kPage - 1);
  const uintptr_t end = (reinterpret_cast<uintptr_t>(data) + size) & ~(kPage - 1);
  if (begin < end) madvise(reinterpret_cast<void*>(begin), end - begin, MADV_HUGEPAGE);
#endif
}

}  // namespace fxpress::core
