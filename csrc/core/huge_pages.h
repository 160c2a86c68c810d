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
  constexpr size_t kPage = size_t{1} << 21;
  const size_t before = (kPage - reinterpret_cast<uintptr_t>(data) % kPage) % kPage;
  if (size < before + kPage) return;
  madvise(static_cast<char*>(data) + before, (size - before) / kPage * kPage, MADV_HUGEPAGE);
#endif
}

}  // namespace fxpress::core
