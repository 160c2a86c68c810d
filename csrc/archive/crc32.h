// Computes the CRC-32 that zip files contain (ISO 3309, polynomial 0x04C11DB7, bits reflected).
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>

namespace fxpress::archive {

using Bytes = std::span<const std::byte>;

// Returns the checksum of the previous bytes plus `bytes`. crc: the previous checksum, initially 0.
uint32_t crc32(uint32_t crc, Bytes bytes);

// Returns the checksum of two concatenated byte sequences. first, second: their checksums.
// second_length: the number of bytes of the second sequence.
uint32_t crc32_of_both(uint32_t first, uint32_t second, uint64_t second_length);

// Like crc32(), but does not use optional processor instructions.
uint32_t crc32_portable(uint32_t crc, Bytes bytes);

}  // namespace fxpress::archive
