#include <doctest/doctest.h>

#include <array>
#include <string>
#include <string_view>

#include "schema/gate.h"

using fxpress::schema::is_guard;

namespace {

std::string repeated(std::string_view text, size_t count) {
  std::string result;
  for (size_t i = 0; i < count; ++i) result += text;
  return result;
}

}  // namespace

TEST_CASE("conditions of inputs are guards") {
  for (const std::string_view text :
       {"L['x'].size()[0] == 3", "L['x'].stride()[1] // 3 != (-2) + 1 or not L['y'].dim() < 2",
        "math.floor(L['n'] / 2.) < math.inf and -math.inf < 1e400",
        "torch._sym_sqrt(torch.sym_float(L['a'][1])) > 2.0e-05",
        "max(L['n'], 1) if L['x'].item() else L['d']['a b'].inner.outer[-1]",
        "round(L['n'] / 3, 2) > abs(-1)", "round(L['n'])",
        "L['x'] == 'a\\\\b\\n\\x00\\u2028\\U0001f600'", "1 < 2 <= 3 != 4 >= 5 > 6",
        "~1 & 2 | 3 ^ 4 % 5"}) {
    CAPTURE(text);
    CHECK(is_guard(text));
  }
}

TEST_CASE("texts outside the grammar are not guards") {
  for (const std::string_view text : {"",
                                      " 1",

                                      "1 2",
                                      "x",
                                      "f(1)",
                                      "L",
                                      "L[0]",
                                      "L['x",
                                      "L['x'",
                                      "(1",
                                      "1)",
                                      "1 ==",
                                      "== 1",
                                      "= 1",
                                      "1 = 1",
                                      "1 ! 1",
                                      "1 <> 2",
                                      "1 += 1",
                                      "1 @ 2",
                                      "[1]",
                                      "{}",
                                      "1,",
                                      "1 if 2",
                                      "max()",
                                      "max(1",
                                      "max(,)",
                                      "math",
                                      "math.",
                                      "math.x",
                                      "torch.load(1)",
                                      "max.x",
                                      "round(1, L['n'])",
                                      "round(1, .)",
                                      "L['x'][.]",
                                      "L['x'][-.5]",
                                      "round(1, 1, 1)",
                                      "round(1, 65)",
                                      "0x1",
                                      "012",
                                      "1_0",
                                      "1j",
                                      "1e",
                                      "1e+",
                                      "1.2.3",
                                      ".5",
                                      "'a' + 1",
                                      "max('a')",
                                      "-'a'",
                                      "'a' 'b'",
                                      "\"a\"",
                                      "'\\'",
                                      "'\\q'",
                                      "'\\x2'",
                                      "'\\x27'",
                                      "'\\U00110000'",
                                      "'a\"'",
                                      "'\x7f'",
                                      "ключ",
                                      "L['x'].size(0)",
                                      "L['x'].f()",
                                      "L['x'].__class__",
                                      "L['x'].",
                                      "L['x'][a]"}) {
    CAPTURE(text);
    CHECK(!is_guard(text));
  }
}

TEST_CASE("attributes are names that Python can compile") {
  for (const std::string_view word : {"not", "if", "None", "True", "lambda", "await", "async"}) {
    CAPTURE(word);
    CHECK(!is_guard("L['x']." + std::string(word)));
    CHECK(!is_guard("L['x']." + std::string(word) + ".size()[0] == 1"));
    CHECK(is_guard("L['x']." + std::string(word) + "_ == 1"));
  }
  CHECK(is_guard("L['x'].match.case.type == 1"));
}

TEST_CASE("exponents are as torch writes them, and bounded") {
  for (const std::string_view text :
       {"L['n'] ** 64", "2 ** L['n'] < 4096", "L['x'].size()[0] ** L['n'] > 5",
        "L['x'].size()[0] // (2 ** L['flat_args'][1]) <= 2",
        "2 ** (1 + 2*L['n'] - L['x'].size()[0] // 3) > 1", "2.0 ** torch.sym_float(L['n']) > 5.0",
        "torch.sym_float(L['n']) ** (-1.0) < 64.0",
        "torch.sym_float(L['n']) ** (1 / L['n']) < 64.0",
        "(1.5*torch.sym_float(L['n'])) ** 2.5 < torch._sym_sqrt(3 ** math.sqrt(L['x'].numel()))",
        "2 ** math.ceil(math.log2(torch.sym_float(L['x'].size()[0]))) < 4096", "2 ** ~-+1",
        "2 ** math.pi", "1 << 3 & 4 >> 1"}) {
    CAPTURE(text);
    CHECK(is_guard(text));
  }
  for (const std::string_view text : {"9 ** 65",
                                      "9 ** 99999999999999999999",
                                      "9 ** (60 + 5)",
                                      "9 ** (60*L['n'])",
                                      "9 ** (2*2*L['n'])",
                                      "9 ** (L['n']*L['n'])",
                                      "9 ** (L['n'] + L['n'] + L['n'] + L['n'] + L['n'])",
                                      "9 ** L['x'].numel()",
                                      "9 ** L['x'].stride()[0]",
                                      "9 ** L['x'].item()",
                                      "9 ** math.floor(1e9)",
                                      "9 ** math.floor(math.exp(64))",
                                      "9 ** math.ceil(math.log(L['n']))",
                                      "9 ** math.isnan(1)",
                                      "9 ** int(1e9)",
                                      "9 ** max(1, L['n'])",
                                      "9 ** torch.sym_max(L['n'], 2)",
                                      "9 ** (1 if L['n'] else 2)",
                                      "9 ** 'a'",
                                      "9 ** 9 ** 9",
                                      "(9 ** 9) ** 9",
                                      "max(1, 9 ** 9) ** 9",
                                      "(1 << 9) ** 9",
                                      "9 **= 9",
                                      "1 << 65",
                                      "1 << 1 * 1000000000000",
                                      "1 << 1 + 1000",
                                      "1 << 2 ** 60"}) {
    CAPTURE(text);
    CHECK(!is_guard(text));
  }
}

TEST_CASE("guards have limits") {
  const auto check = [](const std::string& within, const std::string& beyond) {
    CAPTURE(within.substr(0, 60));
    CHECK(is_guard(within));
    CHECK(!is_guard(beyond));
  };
  check(repeated("(", 30) + "1" + repeated(")", 30), repeated("(", 101) + "1" + repeated(")", 101));
  check(repeated("-", 90) + "1", repeated("-", 101) + "1");
  check(repeated("1 if 2 else ", 90) + "3", repeated("1 if 2 else ", 101) + "3");
  check("2 ** " + repeated("-", 90) + "1", "2 ** " + repeated("-", 101) + "1");
  check(repeated("9", 40), repeated("9", 41));
  check("1." + repeated("9", 78), "1." + repeated("9", 79));
  check("1" + repeated(" + 2**3", 16), "1" + repeated(" + 2**3", 17));
  check("1" + repeated(" or 1", 13000), "1" + repeated(" or 1", 13200));
  const std::string base = "(" + repeated(repeated("9", 39) + "*", 40) + "9)**2";
  check(base, base + " + " + base);
  CHECK(!is_guard(std::string_view("1\0", 2)));
}

TEST_CASE("torch can print guards: they are not too deep as a tree") {
  for (const auto& [front, each, back] : {std::array<std::string_view, 3>{"1", "*9", ""},
                                          {"", "not ", "1"},
                                          {"L['x']", ".a", ""},
                                          {"L['x']", "[0]", ""},
                                          {"2 ** (1", "/1.5", ")"},
                                          {"L['x'].a.b.c[0][1]", "+1", ""}}) {
    CAPTURE(each);
    CHECK(is_guard(std::string(front) + repeated(each, 240) + std::string(back)));
    CHECK(!is_guard(std::string(front) + repeated(each, 251) + std::string(back)));
  }
  CHECK(!is_guard("L['x']" + repeated(".size()[0]", 84)));
  CHECK(!is_guard("(1" + repeated("+1", 130) + ")" + repeated("*1", 130)));
  CHECK(is_guard("1" + repeated("+1", 200) + " == 1" + repeated("*1", 200)));
}
