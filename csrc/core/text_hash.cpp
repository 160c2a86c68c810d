#include "core/text_hash.h"

#include <sys/random.h>

#include <chrono>

namespace fxpress::core {

namespace {
TextSecret draw() noexcept {
  TextSecret drawn{};
  if (getentropy(&drawn, sizeof drawn) != 0) {  // fails in some sandboxes
    const auto now = std::chrono::steady_clock::now().time_since_epoch().count();
    drawn = {static_cast<uint64_t>(now), reinterpret_cast<uintptr_t>(&drawn), ~uint64_t{0} / 3};
  }
  drawn.step |= 1u;
  drawn.end |= 1u;
  return drawn;
}
}  // namespace

const TextSecret text_secret = draw();

}  // namespace fxpress::core
