#include <doctest/doctest.h>

#include <string_view>

#include "archive/crc32.h"
#include "support.h"

using namespace fxpress::archive;
using fxpress::core::testing::Random;

namespace {

Bytes bytes_of(std::string_view text) {
  return std::as_bytes(std::span(text));
}

// Bit by bit, as the standard defines it.
uint32_t by_definition(Bytes bytes) {
  uint32_t state = ~uint32_t{0};
  for (const std::byte byte : bytes) {
    state ^= std::to_integer<uint32_t>(byte);
    for (int bit = 0; bit < 8; ++bit) state = (state >> 1) ^ ((state & 1) != 0 ? 0xEDB88320 : 0);
  }
  return ~state;
}

std::vector<std::byte> random_bytes(size_t size) {
  Random random(static_cast<uint32_t>(size));
  std::vector<std::byte> bytes(size);
  for (std::byte& byte : bytes) byte = static_cast<std::byte>(random.below(256));
  return bytes;
}

}  // namespace

TEST_CASE("checksums of known texts") {
  CHECK(crc32(0, {}) == 0);
  CHECK(crc32(0, bytes_of("123456789")) == 0xCBF43926);  // the check value of the standard
  CHECK(crc32_portable(0, bytes_of("123456789")) == 0xCBF43926);
}

TEST_CASE("checksums of all lengths, at all alignments, follow the definition") {
  const std::vector<std::byte> bytes = random_bytes(700);
  for (size_t start = 0; start < 17; ++start) {
    for (size_t size = 0; size + start <= bytes.size(); size += size < 200 ? 1 : 37) {
      const Bytes part = Bytes(bytes).subspan(start, size);
      const uint32_t expected = by_definition(part);
      CHECK(crc32(0, part) == expected);
      CHECK(crc32_portable(0, part) == expected);
    }
  }
}

TEST_CASE("checksums can be continued and put together") {
  const std::vector<std::byte> bytes = random_bytes(3000);
  const uint32_t whole = by_definition(bytes);
  for (size_t cut = 0; cut <= bytes.size(); cut += 113) {
    const Bytes first = Bytes(bytes).first(cut);
    const Bytes second = Bytes(bytes).subspan(cut);
    CHECK(crc32(crc32(0, first), second) == whole);
    CHECK(crc32_of_both(crc32(0, first), crc32(0, second), second.size()) == whole);
  }
  // The longest file there can be: x^(8 * 2^60) has period 2^32 - 1, so 2^28 zero bytes more or
  // fewer do the same.
  CHECK(crc32_of_both(whole, 0, uint64_t{1} << 60) == crc32_of_both(whole, 0, uint64_t{1} << 28));
}
