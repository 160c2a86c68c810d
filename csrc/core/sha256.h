// SHA-256 (FIPS 180-4), for hashes that are the same on every machine.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <span>

namespace fxpress::core {

using Digest = std::array<uint8_t, 32>;

class Sha256 {
 public:
  void add(std::span<const uint8_t> bytes);
  // The digest of all bytes that were added. Nothing can be added afterwards.
  Digest finish();

 private:
  static constexpr size_t kBlock = 64;
  void compress(const uint8_t* block);

  std::array<uint32_t, 8> state_{0x6a09e667, 0xbb67ae85, 0x3c6ef372, 0xa54ff53a,
                                 0x510e527f, 0x9b05688c, 0x1f83d9ab, 0x5be0cd19};
  std::array<uint8_t, kBlock> rest_{};  // bytes that do not fill a block yet
  uint64_t size_ = 0;                   // bytes that were added
};

}  // namespace fxpress::core
