#include "core/blake2b.h"

#include <algorithm>
#include <bit>

namespace fxpress::core {

namespace {

constexpr size_t kBlockBytes = 128;
constexpr size_t kRounds = 12;

// The fractional parts of the square roots of the first eight primes (RFC 7693: IV).
constexpr std::array<uint64_t, 8> kStart = {
    0x6a09e667f3bcc908, 0xbb67ae8584caa73b, 0x3c6ef372fe94f82b, 0xa54ff53a5f1d36f1,
    0x510e527fade682d1, 0x9b05688c2b3e6c1f, 0x1f83d9abfb41bd6b, 0x5be0cd19137e2179};

// The order in which a round uses the words of a block. The last two rounds repeat the first two.
constexpr std::array<std::array<uint8_t, 16>, 10> kOrders = {{
    {0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15},
    {14, 10, 4, 8, 9, 15, 13, 6, 1, 12, 0, 2, 11, 7, 5, 3},
    {11, 8, 12, 0, 5, 2, 15, 13, 10, 14, 3, 6, 7, 1, 9, 4},
    {7, 9, 3, 1, 13, 12, 11, 14, 2, 6, 5, 10, 4, 0, 15, 8},
    {9, 0, 5, 7, 2, 4, 10, 15, 14, 1, 11, 12, 6, 8, 3, 13},
    {2, 12, 6, 10, 0, 11, 8, 3, 4, 13, 7, 5, 15, 14, 1, 9},
    {12, 5, 1, 15, 14, 13, 4, 10, 0, 7, 6, 3, 9, 2, 8, 11},
    {13, 11, 7, 14, 12, 1, 3, 9, 5, 0, 15, 4, 8, 6, 2, 10},
    {6, 15, 14, 9, 11, 3, 0, 8, 12, 2, 13, 7, 1, 4, 10, 5},
    {10, 2, 8, 4, 7, 6, 1, 5, 15, 11, 9, 14, 3, 12, 13, 0},
}};

using State = std::array<uint64_t, 8>;

uint64_t little_endian(const uint8_t* bytes) {
  uint64_t word = 0;
  for (size_t i = 0; i < 8; ++i) word |= uint64_t{bytes[i]} << (8 * i);
  return word;
}

// Mixes a block into the state. seen: the number of message bytes up to the end of this block.
void compress(State& state, const uint8_t* block, uint64_t seen, bool last) {
  std::array<uint64_t, 16> words;
  for (size_t i = 0; i < words.size(); ++i) words[i] = little_endian(block + 8 * i);
  std::array<uint64_t, 16> v;
  std::copy(state.begin(), state.end(), v.begin());
  std::copy(kStart.begin(), kStart.end(), v.begin() + 8);
  v[12] ^= seen;
  if (last) v[14] = ~v[14];
  const auto mix = [&](size_t a, size_t b, size_t c, size_t d, uint64_t x, uint64_t y) {
    v[a] += v[b] + x;
    v[d] = std::rotr(v[d] ^ v[a], 32);
    v[c] += v[d];
    v[b] = std::rotr(v[b] ^ v[c], 24);
    v[a] += v[b] + y;
    v[d] = std::rotr(v[d] ^ v[a], 16);
    v[c] += v[d];
    v[b] = std::rotr(v[b] ^ v[c], 63);
  };
  for (size_t round = 0; round < kRounds; ++round) {
    const auto& order = kOrders[round % kOrders.size()];
    for (size_t i = 0; i < 4; ++i) {  // mixes the columns of the state
      mix(i, i + 4, i + 8, i + 12, words[order[2 * i]], words[order[2 * i + 1]]);
    }
    for (size_t i = 0; i < 4; ++i) {  // mixes the diagonals of the state
      mix(i, (i + 1) % 4 + 4, (i + 2) % 4 + 8, (i + 3) % 4 + 12, words[order[2 * i + 8]],
          words[order[2 * i + 9]]);
    }
  }
  for (size_t i = 0; i < state.size(); ++i) state[i] ^= v[i] ^ v[i + 8];
}

}  // namespace

Digest blake2b(std::span<const uint8_t> bytes) {
  State state = kStart;
  state[0] ^= 0x01010000 ^ Digest {}.size();  // parameters: no key, no tree, digest size
  uint64_t seen = 0;
  for (; bytes.size() > kBlockBytes; bytes = bytes.subspan(kBlockBytes)) {
    seen += kBlockBytes;
    compress(state, bytes.data(), seen, false);
  }
  std::array<uint8_t, kBlockBytes> rest{};
  std::copy(bytes.begin(), bytes.end(), rest.begin());
  compress(state, rest.data(), seen + bytes.size(), true);
  Digest digest;
  for (size_t i = 0; i < digest.size(); ++i) {
    digest[i] = static_cast<uint8_t>(state[i / 8] >> (8 * (i % 8)));
  }
  return digest;
}

}  // namespace fxpress::core
