#include <doctest/doctest.h>

#include <optional>
#include <string>
#include <vector>

#include "../fuzz/torch_schema.h"
#include "core/extent.h"
#include "schema/extent.h"
#include "schema/json_reader.h"

using namespace fxpress::schema;

namespace {

constexpr const char* kAny = R"({"as_expr": {"expr_str": "s0", "hint": null}})";
constexpr const char* kLarge = R"({"as_int": 4611686018427387904})";  // 2^62

std::string number(int64_t value) {
  return R"({"as_int": )" + std::to_string(value) + "}";
}

bool countable(const std::string& sizes, const std::string& strides, const std::string& offset) {
  const std::string text = R"({"dtype": 7, "sizes": [)" + sizes + R"(], "strides": [)" + strides +
                           R"(], "storage_offset": )" + offset +
                           R"(, "requires_grad": false, "layout": 7, "device": {"type": "cpu"}})";
  const auto type = static_cast<uint16_t>(torch_schema().find("TensorMeta"));
  const Document document = read_json(text, torch_schema(), type);
  return is_countable(document, document.root());
}

}  // namespace

TEST_CASE("bytes of tensors are counted in 64 bits") {
  const std::string one = number(1);
  const std::string three = number(3);
  CHECK(countable("", "", number(0)));
  CHECK(countable(three, one, number(5)));
  CHECK(countable(three + "," + three, "", three));  // torch says what is wrong
  CHECK(countable(number(int64_t{1} << 58), one, number(0)));
  CHECK(countable(number(0), kLarge, number(0)));
  CHECK(countable(one, kLarge, number(0)));
  CHECK(countable(number(-5), number(-5), number(-5)));
  CHECK(!countable("", "", kLarge));
  CHECK(!countable(three, one, kLarge));
  CHECK(!countable(three, kLarge, number(0)));
  CHECK(!countable(kLarge, one, number(0)));
  CHECK(!countable(kLarge, number(0), number(0)));
  CHECK(!countable(kLarge, kLarge, number(0)));
  const std::string half = number(int64_t{1} << 32);
  CHECK(!countable(half + "," + half, number(0) + "," + number(0), number(0)));
  CHECK(!countable(three + "," + three, number(int64_t{1} << 58) + "," + one,
                   number(int64_t{1} << 58)));
}

TEST_CASE("text that is not a number may be small") {
  CHECK(countable(kAny, kAny, kAny));
  CHECK(countable(kAny, kLarge, number(0)));
  CHECK(!countable(kAny, number(1), kLarge));
  CHECK(!countable(std::string(kAny) + "," + kLarge, number(1) + "," + number(1), number(0)));
}

TEST_CASE("bytes that a view needs") {
  constexpr int64_t kMost = int64_t{1} << 62;
  const auto needed = [](const std::vector<int64_t>& sizes, const std::vector<int64_t>& strides,
                         int64_t offset) {
    return fxpress::core::bytes_needed(sizes, strides, offset, 4);
  };
  CHECK(needed({}, {}, 0) == 4);
  CHECK(needed({}, {}, 5) == 24);
  CHECK(needed({2, 3}, {3, 1}, 0) == 24);
  CHECK(needed({2, 3}, {1, 2}, 2) == 32);
  CHECK(needed({2, 0}, {1, 1}, 7) == 0);
  CHECK(needed({5}, {0}, 0) == 4);
  CHECK(needed({1}, {kMost}, 0) == 4);
  for (const auto& bad : {needed({-1}, {1}, 0), needed({1}, {-1}, 0), needed({1}, {1}, -1),
                          needed({3}, {kMost}, 0), needed({1}, {1}, kMost),
                          needed({kMost, kMost}, {kMost, 1}, 0), needed({0, 5}, {1, kMost}, 0)}) {
    CHECK(bad == std::nullopt);
  }
}
