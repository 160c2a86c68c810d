#include "archive/crc32.h"

#include <array>
#include <bit>
#include <cstring>

#if defined(__x86_64__) && (defined(__GNUC__) || defined(__clang__))
#define FXPRESS_CRC32_FOLDS 1
#include <immintrin.h>
#endif

namespace fxpress::archive {

namespace {

// A polynomial over GF(2) of degree below 32. Its highest bit is the coefficient of x^0.
using Polynomial = uint32_t;

constexpr Polynomial kModulus = 0xEDB88320;  // the CRC polynomial without its term x^32
constexpr Polynomial kOne = 0x80000000;

constexpr Polynomial times_x(Polynomial a) {
  return (a >> 1) ^ ((a & 1) != 0 ? kModulus : 0);
}

constexpr Polynomial product(Polynomial a, Polynomial b) {
  Polynomial sum = 0;
  for (Polynomial power = kOne; power != 0; power >>= 1, b = times_x(b)) {
    if ((a & power) != 0) sum ^= b;
  }
  return sum;
}

// Returns x^exponent.
constexpr Polynomial x_to_the(uint64_t exponent) {
  Polynomial result = kOne;
  for (Polynomial power = times_x(kOne); exponent != 0; exponent >>= 1) {
    if ((exponent & 1) != 0) result = product(result, power);
    power = product(power, power);
  }
  return result;
}

// kTables[k][b] is the CRC state that byte b and k zero bytes after it produce from state 0.
constexpr auto kTables = [] {
  std::array<std::array<uint32_t, 256>, 8> tables{};
  for (uint32_t byte = 0; byte < 256; ++byte) {
    uint32_t value = byte;
    for (int bit = 0; bit < 8; ++bit) value = times_x(value);
    tables[0][byte] = value;
  }
  for (size_t k = 1; k < tables.size(); ++k) {
    for (size_t byte = 0; byte < 256; ++byte) {
      const uint32_t before = tables[k - 1][byte];
      tables[k][byte] = (before >> 8) ^ tables[0][before & 0xFF];
    }
  }
  return tables;
}();

// Computes the new CRC state after `bytes`. A state is the complement of a checksum.
uint32_t by_tables(uint32_t state, Bytes bytes) {
  for (; bytes.size() >= 8; bytes = bytes.subspan(8)) {
    uint64_t word = 0;
    static_assert(std::endian::native == std::endian::little);
    std::memcpy(&word, bytes.data(), sizeof(word));
    word ^= state;
    state = 0;
    for (size_t i = 0; i < 8; ++i) state ^= kTables[7 - i][(word >> (8 * i)) & 0xFF];
  }
  for (const std::byte byte : bytes) {
    state = (state >> 8) ^ kTables[0][(state ^ std::to_integer<uint32_t>(byte)) & 0xFF];
  }
  return state;
}

#ifdef FXPRESS_CRC32_FOLDS

// Returns x^bits, shifted left by one bit. fold() multiplies 64 bits by this factor to move them by
// `bits` bits. The shift is needed because a product of bit-reflected polynomials lacks one bit.
constexpr int64_t carry(uint64_t bits) {
  return static_cast<int64_t>(static_cast<uint64_t>(x_to_the(bits)) << 1);
}

__attribute__((target("pclmul,sse4.1"))) inline __m128i load(const std::byte* from) {
  return _mm_loadu_si128(reinterpret_cast<const __m128i*>(from));
}

// Multiplies the two halves of `block` by the two factors in `carries` (from carry()), and adds
// both products to the later block `there`.
__attribute__((target("pclmul,sse4.1"))) inline __m128i fold(__m128i block, __m128i carries,
                                                             __m128i there) {
  const __m128i low = _mm_clmulepi64_si128(block, carries, 0x00);
  const __m128i high = _mm_clmulepi64_si128(block, carries, 0x11);
  return _mm_xor_si128(_mm_xor_si128(low, high), there);
}

// Folds 64-byte blocks into one block of 16 bytes with the same CRC, then computes this CRC by
// tables ("Fast CRC Computation for Generic Polynomials Using PCLMULQDQ Instruction", Intel 2009).
__attribute__((target("pclmul,sse4.1"))) uint32_t by_folding(uint32_t state, Bytes bytes) {
  const __m128i over_four = _mm_set_epi64x(carry(4 * 128 - 32), carry(4 * 128 + 32));
  const __m128i over_one = _mm_set_epi64x(carry(128 - 32), carry(128 + 32));
  const std::byte* at = bytes.data();
  __m128i a = _mm_xor_si128(load(at), _mm_cvtsi32_si128(static_cast<int>(state)));
  __m128i b = load(at + 16);
  __m128i c = load(at + 32);
  __m128i d = load(at + 48);
  size_t left = bytes.size() - 64;
  for (at += 64; left >= 64; at += 64, left -= 64) {
    a = fold(a, over_four, load(at));
    b = fold(b, over_four, load(at + 16));
    c = fold(c, over_four, load(at + 32));
    d = fold(d, over_four, load(at + 48));
  }
  a = fold(fold(fold(a, over_one, b), over_one, c), over_one, d);
  for (; left >= 16; at += 16, left -= 16) a = fold(a, over_one, load(at));
  std::array<std::byte, 16> rest{};
  _mm_storeu_si128(reinterpret_cast<__m128i*>(rest.data()), a);
  return by_tables(by_tables(0, rest), {at, left});
}

bool can_fold() {
  static const bool can = [] {
    __builtin_cpu_init();
    return __builtin_cpu_supports("pclmul") != 0 && __builtin_cpu_supports("sse4.1") != 0;
  }();
  return can;
}

#endif

}  // namespace

uint32_t crc32_portable(uint32_t crc, Bytes bytes) {
  return ~by_tables(~crc, bytes);
}

uint32_t crc32(uint32_t crc, Bytes bytes) {
#ifdef FXPRESS_CRC32_FOLDS
  if (bytes.size() >= 64 && can_fold()) return ~by_folding(~crc, bytes);
#endif
  return crc32_portable(crc, bytes);
}

uint32_t crc32_of_both(uint32_t first, uint32_t second, uint64_t second_length) {
  return product(x_to_the(8 * second_length), first) ^ second;
}

}  // namespace fxpress::archive
