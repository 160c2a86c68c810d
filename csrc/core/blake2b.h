// Computes BLAKE2b (RFC 7693) with 32-byte digests, for hashes that must be equal on all machines.
#pragma once

#include <array>
#include <cstdint>
#include <span>

namespace fxpress::core {

using Digest = std::array<uint8_t, 32>;

Digest blake2b(std::span<const uint8_t> bytes);

}  // namespace fxpress::core
