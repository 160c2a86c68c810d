// CRC-32 as zip files use it (ISO 3309, polynomial 0x04C11DB7, bits reflected).
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>

namespace fxpress::archive {

using Bytes = std::span<const std::byte>;

// The checksum of what `crc` is the checksum of, followed by `bytes`; 0 is that of nothing.
uint32_t crc32(uint32_t crc, Bytes bytes);

// The checksum of two texts one after the other, from that of each and the second one's length.
uint32_t crc32_of_both(uint32_t first, uint32_t second, uint64_t second_length);

// Computes crc32() without instructions that not every processor has; for tests.
uint32_t crc32_portable(uint32_t crc, Bytes bytes);

}  // namespace fxpress::archive
