#include <doctest/doctest.h>

#include <string>

#include "core/check.h"

using fxpress::core::InternalError;

TEST_CASE("check: a condition that holds does nothing") {
  CHECK_NOTHROW(FXPRESS_CHECK(1 + 1 == 2, "arithmetic"));
}

TEST_CASE("check: a broken invariant says where and what") {
  std::string what;
  try {
    FXPRESS_CHECK(false, "the sky fell");
  } catch (const InternalError& error) {
    what = error.what();
  }
  CHECK(what == std::string(__FILE__) + ":" + std::to_string(__LINE__ - 4) + ": the sky fell");
}
