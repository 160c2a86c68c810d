#include <doctest/doctest.h>

#include <string>
#include <vector>

#include "schema/json_index.h"

using namespace fxpress;
using schema::JsonIndex;

namespace {

constexpr size_t kDepth = 8;

core::Budget plenty() {
  return core::Budget(1 << 20, kDepth);
}

std::string problem(const std::string& text) {
  core::Budget budget = plenty();
  try {
    const JsonIndex index(text, budget);
    return "";
  } catch (const schema::JsonError& error) {
    return error.what();
  }
}

std::vector<std::string> items(const JsonIndex& index, uint32_t value) {
  std::vector<std::string> found;
  for (uint32_t at = index.first_in(value); at != index.end_of(value); at = index.next(at)) {
    found.emplace_back(index.raw(at));
  }
  return found;
}

}  // namespace

TEST_CASE("values are where they stand in the text") {
  const std::string text = R"( {"a": [1, -2.5e3 ,{"b":null}], "c\u0064": "x\n\u00e9"} )";
  core::Budget budget = plenty();
  const JsonIndex index(text, budget);
  std::string buffer;
  CHECK(index.is_object(0));
  CHECK(index.raw(0) == text.substr(1, text.size() - 2));
  CHECK(index.size_within(0) == 6);
  CHECK(items(index, 0) ==
        std::vector<std::string>{R"([1, -2.5e3 ,{"b":null}])", R"("x\n\u00e9")"});
  const uint32_t list = index.find(0, "a");
  CHECK(index.is_list(list));
  CHECK(items(index, list) == std::vector<std::string>{"1", "-2.5e3", R"({"b":null})"});
  CHECK(index.only_one(list) == JsonIndex::kNone);
  const uint32_t other = index.find(0, "cd");  // its key is written with an escape
  CHECK(index.is_text(other));
  CHECK(index.text(other, buffer) == "x\n\xc3\xa9");
  CHECK(index.key(other, buffer) == "cd");
  CHECK(index.find(0, "b") == JsonIndex::kNone);
  CHECK(index.find(0, "c") == JsonIndex::kNone);
  CHECK(index.find(0, "cde") == JsonIndex::kNone);
  CHECK(index.find(0, "") == JsonIndex::kNone);
  CHECK(budget.used() > 0);
}

TEST_CASE("the last of equal keys counts, and what Python takes for a number is taken") {
  const std::string text = R"({"a":1,"b":NaN,"":[],"a":-Infinity,"c":Infinity})";
  core::Budget budget = plenty();
  const JsonIndex index(text, budget);
  CHECK(index.raw(index.find(0, "a")) == "-Infinity");
  CHECK(index.raw(index.find(0, "")) == "[]");
  CHECK(items(index, index.find(0, "")).empty());
  CHECK(index.only_one(index.find(0, "")) == JsonIndex::kNone);
  const std::string single = "[[true]]";
  const JsonIndex outer(single, budget);
  CHECK(outer.raw(outer.only_one(0)) == "[true]");
  CHECK(outer.raw(outer.only_one(1)) == "true");
}

TEST_CASE("what is no JSON is refused with its place") {
  CHECK(problem(R"({"a":[1,2,{}]})").empty());
  for (const char* text : {"",           " ",        "{",
                           "[",          "[1",       "[1,",
                           "[1,]",       "{\"a\"}",  "{\"a\":}",
                           "{\"a\":1,}", "{a:1}",    "{1:2}",
                           "nul",        "tru",      "01",
                           "1.",         "-",        "1e",
                           "+1",         "\"",       "\"a",
                           "\"\\\"",     "\"\\x\"",  "\"\\u12g4\"",
                           "\"\x01\"",   "\"\xff\"", "\"\xed\xa0\x80\"",
                           "1 2",        "[1 2]",    "{\"a\" 1}"}) {
    CAPTURE(text);
    CHECK(problem(text).find("(at byte ") != std::string::npos);
  }
  CHECK(problem("[1,]") == "the text: expected a number (at byte 3)");
}

TEST_CASE("depth and memory are limited") {
  core::Budget budget = plenty();
  const std::string deep = std::string(kDepth, '[') + std::string(kDepth, ']');
  CHECK_NOTHROW(JsonIndex(deep, budget));
  const std::string deeper = "[" + deep + "]";
  CHECK_THROWS_AS(JsonIndex(deeper, budget), core::LimitReached);
  core::Budget little(100, kDepth);
  CHECK_THROWS_AS(JsonIndex("[1,2,3,4,5,6,7,8]", little), core::LimitReached);
}
