// Computes CRC-32 as zip files use it (ISO 3309, polynomial 0x04C11DB7, bits reflected).
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>

namespace fxpress::archive {

using Bytes = std::span<const std::byte>;

// Extends the checksum `crc` of previous bytes, initially 0, by `bytes`.
uint32_t crc32(uint32_t crc, Bytes bytes);

// Returns the checksum of two concatenated sequences of bytes from their checksums and the length
// of the second.
uint32_t crc32_of_both(uint32_t first, uint32_t second, uint64_t second_length);

// Computes crc32() without optional processor instructions; for tests.
uint32_t crc32_portable(uint32_t crc, Bytes bytes);

}  // namespace fxpress::archive
