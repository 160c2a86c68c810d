#include <doctest/doctest.h>

#include <string>
#include <string_view>

#include "core/sha256.h"

namespace {

using fxpress::core::Sha256;

std::string hex(const fxpress::core::Digest& digest) {
  constexpr std::string_view kDigits = "0123456789abcdef";
  std::string text;
  for (const uint8_t byte : digest) {
    text += kDigits[byte >> 4];
    text += kDigits[byte & 15];
  }
  return text;
}

std::string hash(std::string_view text, size_t step) {
  Sha256 sha;
  for (size_t i = 0; i < text.size(); i += step) {
    const std::string_view part = text.substr(i, step);
    sha.add({reinterpret_cast<const uint8_t*>(part.data()), part.size()});
  }
  return hex(sha.finish());
}

}  // namespace

// The examples of FIPS 180-4, and the lengths around a block, whose hashes are from sha256sum.
TEST_CASE("sha256: the examples of the standard, in parts of any size") {
  const std::string million(1000000, 'a');
  for (const size_t step : {1, 3, 55, 64, 65, 1000}) {
    CHECK(hash("", step) == "e3b0c44298fc1c149afbf4c8996fb92427ae41e4649b934ca495991b7852b855");
    CHECK(hash("abc", step) == "ba7816bf8f01cfea414140de5dae2223b00361a396177a9cb410ff61f20015ad");
    CHECK(hash("abcdbcdecdefdefgefghfghighijhijkijkljklmklmnlmnomnopnopq", step) ==
          "248d6a61d20638b8e5c026930c3e6039a33ce45964ff2167f6ecedd419db06c1");
    CHECK(hash(million, step) ==
          "cdc76e5c9914fb9281a1c7e284d73e67f1809a48a497200e046d39ccc7112cd0");
  }
}

TEST_CASE("sha256: lengths around a block") {
  const std::string text(200, 'x');
  CHECK(hash(text.substr(0, 55), 64) ==
        "d5e285683cd4efc02d021a5c62014694958901005d6f71e89e0989fac77e4072");
  CHECK(hash(text.substr(0, 56), 64) ==
        "04c26261370ee7541549d16dee320c723e3fd14671e66a099afe0a377c16888e");
  CHECK(hash(text.substr(0, 63), 64) ==
        "75220b47218278e656f2013bb8f0c455a25eaf01e86c64924e9d48d89776d6f2");
  CHECK(hash(text.substr(0, 64), 64) ==
        "7ce100971f64e7001e8fe5a51973ecdfe1ced42befe7ee8d5fd6219506b5393c");
  CHECK(hash(text.substr(0, 65), 64) ==
        "9537c5fdf120482f7d58d25e9ed583f52c02b4e304ea814db1633ad565aed7e9");
  CHECK(hash(text.substr(0, 119), 64) ==
        "000b48d4edf0fa7bee3c6236ecd2785baa5db4eeb8bb54341b029e0d9fa5fb0c");
  CHECK(hash(text.substr(0, 120), 64) ==
        "13f05a0b594787f5ecd315edc96141bd3243203d1b7d4f0836f37308b276ba98");
  CHECK(hash(text.substr(0, 128), 64) ==
        "24da1b81d0b16df6428eee73c69fcb2a93c76bc6df706f0c6670fe6bfe800464");
}
