#include <doctest/doctest.h>

#include <string>

#include "../fuzz/torch_schema.h"
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

TEST_CASE("what is no number may be small") {
  CHECK(countable(kAny, kAny, kAny));
  CHECK(countable(kAny, kLarge, number(0)));
  CHECK(!countable(kAny, number(1), kLarge));
  CHECK(!countable(std::string(kAny) + "," + kLarge, number(1) + "," + number(1), number(0)));
}
