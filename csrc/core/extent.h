// Computes how many bytes of a storage a strided view needs.
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>

namespace fxpress::core {

// Returns the size in bytes of a storage up to the end of a view; 0 if the view is empty.
// Returns nullopt if a number is negative, or if the result overflows 64 bits. `sizes` and
// `strides` have the same length. `strides` and `offset` count elements of `item` bytes.
inline std::optional<uint64_t> bytes_needed(std::span<const int64_t> sizes,
                                            std::span<const int64_t> strides, int64_t offset,
                                            uint64_t item) {
  bool is_empty = false;
  bool is_out_of_range = offset < 0;
  auto elements = static_cast<uint64_t>(offset);
  for (size_t i = 0; i < sizes.size(); ++i) {
    is_out_of_range |= sizes[i] < 0 || strides[i] < 0;
    is_empty |= sizes[i] == 0;
    if (sizes[i] == 0) continue;
    uint64_t span = 0;
    is_out_of_range |= __builtin_mul_overflow(static_cast<uint64_t>(sizes[i] - 1),
                                              static_cast<uint64_t>(strides[i]), &span);
    is_out_of_range |= __builtin_add_overflow(elements, span, &elements);
  }
  uint64_t bytes = 0;
  is_out_of_range |= __builtin_add_overflow(elements, uint64_t{1}, &elements);
  is_out_of_range |= __builtin_mul_overflow(elements, item, &bytes);
  if (is_out_of_range) return std::nullopt;
  return is_empty ? 0 : bytes;
}

}  // namespace fxpress::core
