#include <doctest/doctest.h>

#include <string>
#include <string_view>

#include "core/blake2b.h"

namespace {

std::string hash(std::string_view text) {
  constexpr std::string_view kDigits = "0123456789abcdef";
  const auto digest =
      fxpress::core::blake2b({reinterpret_cast<const uint8_t*>(text.data()), text.size()});
  std::string hex;
  for (const uint8_t byte : digest) {
    hex += kDigits[byte >> 4];
    hex += kDigits[byte & 15];
  }
  return hex;
}

}  // namespace

// The expected digests come from Python's hashlib.
TEST_CASE("blake2b: texts of no, one and several blocks") {
  std::string text;
  for (int i = 0; i < 125; ++i) text += "fxpress ";
  CHECK(hash(text.substr(0, 0)) ==
        "0e5751c026e543b2e8ab2eb06099daa1d1e5df47778f7787faab45cdf12fe3a8");
  CHECK(hash(text.substr(0, 1)) ==
        "e0befc611c4bd14b4d2f0d6c78a0de8d98c747217912f27ac7f67b06476bde3d");
  CHECK(hash(text.substr(0, 3)) ==
        "a6893c9862b30466a75b4c5c181320fd2c4f3ce880926636c3f9155e1e284110");
  CHECK(hash(text.substr(0, 127)) ==
        "4bc028e4ff22a5b6a88a04f562255eb83ca7e283f3bd100bf758947dadfb112d");
  CHECK(hash(text.substr(0, 128)) ==
        "ede9c7f77e453ead193e460f60bd1e46253672f9ddd1bd8c8c8252d31bae341c");
  CHECK(hash(text.substr(0, 129)) ==
        "5e442ae5fc5ec5dbfd340e482e4733e32b2fd28d09b1bbc442c6ca5105bdb1d4");
  CHECK(hash(text.substr(0, 255)) ==
        "5f3e5e5efabd670622a5a361d990b04e231bbe3cdeae0122cb8175cc53ab5c7d");
  CHECK(hash(text.substr(0, 256)) ==
        "0bf5b647352df3817231059c5545d742e16066a6263f851b4055270a2c10b7a5");
  CHECK(hash(text.substr(0, 257)) ==
        "fcc791501386ce44b1c402f44cf183fc609ccf9b452c9aff9541c78760e07c6c");
  CHECK(hash(text.substr(0, 1000)) ==
        "420ccf3c463be478982a886e8767c6190551c2306e0981876e0f1442390c9830");
}
