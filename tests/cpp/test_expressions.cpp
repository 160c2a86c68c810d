#include <doctest/doctest.h>

#include <string>
#include <string_view>
#include <vector>

#include "capture/text/expressions.h"
#include "core/check.h"
#include "support.h"

using namespace fxpress::core;
using namespace fxpress::capture;
using fxpress::core::testing::Random;

namespace {

// Empty where it is not covered.
std::string printed(std::string_view text) {
  Expressions expressions;
  const auto id = expressions.parse(text);
  return id ? expressions.print(*id) : "";
}

}  // namespace

TEST_CASE("expressions are printed as Python prints them") {
  CHECK(printed("a.b [ 'c' ] ( d,e = f )") == "a.b['c'](d, e=f)");
  CHECK(printed("((a+b))*c") == "(a + b) * c");
  CHECK(printed("a - (b - c)") == "a - (b - c)");
  CHECK(printed("-a ** -b") == "-a ** (-b)");
  CHECK(printed("not (a or b)") == "not (a or b)");
  CHECK(printed("x[(1, 2)]") == "x[1, 2]");
  CHECK(printed("f((1,))") == "f((1,))");
}

TEST_CASE("equal expressions are one") {
  Expressions expressions;
  CHECK(expressions.parse("a . b") == expressions.parse("(a).b"));
  CHECK(expressions.parse("f('a')") == expressions.parse("f(\"a\")"));
  CHECK(expressions.parse("f(a)") != expressions.parse("f(k=a)"));
  CHECK(expressions.parse("[a]") != expressions.parse("(a,)"));
  CHECK(expressions.parse("'a'.b") != expressions.parse("a.b"));
  CHECK(expressions.parse("a.b < c < d") != expressions.parse("(a.b < c) < d"));
}

TEST_CASE("text that is not an expression is not covered") {
  for (const char* text : {"",
                           " ",
                           " a",
                           "a b",
                           "a.",
                           "(",
                           ")",
                           "[",
                           "'",
                           "f(",
                           "f(a",
                           "f(a=",
                           "x[",
                           "x[]",
                           "a if b",
                           "lambda: a",
                           "a = b",
                           "1a",
                           "01",
                           "1.",
                           "$",
                           "\n",
                           "a\n",
                           "not",
                           "a not",
                           "a is",
                           "'a' 'b'",
                           "'\\n'",
                           "\"\"\"a\"\"\"",
                           "a #"}) {
    CAPTURE(text);
    CHECK(printed(text).empty());
  }
}

TEST_CASE("depth is bounded") {
  const auto repeated = [](std::string_view text, size_t count) {
    std::string result;
    while (count-- > 0) result += text;
    return result;
  };
  for (const std::string_view open : {"(", "[", "f(", "x[", "-", "not ", "a ** ", "a.", "a + "}) {
    CAPTURE(open);
    CHECK(printed(repeated(open, 100'000) + "a").empty());
  }
  CHECK(printed("f(" + repeated("a, ", 10'000) + "a)").size() > 30'000);
}

TEST_CASE("what is common gets variables, inner parts first") {
  CommonSubexpressions common;
  std::vector<ExpressionId> counted;
  for (const char* text : {"a.b.c == 1", "a.b.d(a.b)", "e.f"}) {
    const auto id = common.count(text);
    REQUIRE(id);
    counted.push_back(*id);
  }
  const auto first = common.replace(counted[0]);
  CHECK(first.assignments == std::vector<std::string>{"_var0 = a.b"});
  CHECK(first.text == "_var0.c == 1");
  const auto second = common.replace(counted[1]);
  CHECK(second.assignments.empty());
  CHECK(second.text == "_var0.d(_var0)");
  CHECK(common.replace(counted[2]).text == "e.f");
  CHECK_FALSE(common.count("lambda: 0"));
  CHECK_THROWS_AS(common.replace(1000), InternalError);
}

TEST_CASE("parts of what is not covered") {
  CommonSubexpressions common;
  const auto id = common.count("a.b");
  REQUIRE(id);
  common.count_part("a.b");
  common.count_part("f'{x}'.y");
  CHECK(common.is_common("a.b"));
  CHECK_FALSE(common.is_common("f'{x}'.y"));
  CHECK_FALSE(common.variable("a.b"));
  CHECK(common.new_variable("a.b") == "_var0");
  CHECK(common.variable("a.b") == "_var0");
  CHECK(common.replace(*id).text == "_var0");
}

TEST_CASE("any text is parsed or refused") {
  Random random(7);
  const std::string_view letters = "aL.[](),'\"=<>!+-*/ 10not is_%@&|^~:";
  for (int round = 0; round < 20'000; ++round) {
    std::string text;
    for (uint32_t size = random.below(16); size > 0; --size) {
      text += letters[random.below(static_cast<uint32_t>(letters.size()))];
    }
    const std::string once = printed(text);
    CAPTURE(text);
    if (!once.empty()) CHECK(printed(once) == once);
  }
}
