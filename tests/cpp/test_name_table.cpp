#include <doctest/doctest.h>

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "core/name_table.h"
#include "core/string_pool.h"
#include "support.h"

using namespace fxpress::core;
using namespace fxpress::core::testing;
using namespace std::string_view_literals;

namespace {

struct Call {
  std::string_view candidate;  // the name to find
  std::string_view name;       // what torch answers
  bool exempt = false;         // the builtin of that name is what is being named
};

struct Count {
  std::string_view base;  // a name without its number
  int64_t count;          // the number that torch handed out last
};

struct Case {
  std::vector<Call> calls;
  std::vector<Count> counts;  // in torch's order
};

#include "name_table_cases.inc"

// A table with its pool, spoken to in text.
class Names {
 public:
  Names() {
    for (std::string_view name : kForbidden) table.forbid(pool.intern(name));
  }

  std::string create(std::string_view candidate, bool exempt = false) {
    return std::string(pool.text(table.create(pool.intern(candidate), exempt)));
  }
  std::string legal(std::string_view candidate) {
    return std::string(pool.text(table.legal(pool.intern(candidate))));
  }

  StringPool pool;
  NameTable table{pool};
};

void require_as_torch(Names& names, const Case& expected) {
  for (const Call& call : expected.calls) {
    CAPTURE(call.candidate);
    REQUIRE(names.create(call.candidate, call.exempt) == call.name);
  }
  const auto bases = names.table.changed_bases();
  REQUIRE(bases.size() == expected.counts.size());
  for (size_t i = 0; i < bases.size(); ++i) {
    CAPTURE(i);
    REQUIRE(names.pool.text(bases[i]) == expected.counts[i].base);
    REQUIRE(names.table.count(bases[i]) == expected.counts[i].count);
  }
}

}  // namespace

TEST_CASE("name_table: names and counts equal torch's") {
  for (size_t i = 0; i < kCases.size(); ++i) {
    CAPTURE(i);
    Names names;
    require_as_torch(names, kCases[i]);
  }
}

TEST_CASE("name_table: begin_graph forgets the names and not the rules") {
  Names names;
  // Twice, so that every case meets a table that knows its text already.
  for (int round = 0; round < 2; ++round) {
    for (size_t i = 0; i < kCases.size(); ++i) {
      CAPTURE(i);
      names.table.begin_graph();
      CHECK(names.table.changed_bases().empty());
      require_as_torch(names, kCases[i]);
    }
  }
}

TEST_CASE("name_table: every name is handed out once") {
  for_each_seed([](Random& random) {
    Names names;
    std::vector<bool> seen;
    for (int i = 0; i < 200; ++i) {
      std::string candidate(1, "ab_1."[random.below(5)]);
      for (uint32_t k = random.below(5); k > 0; --k) candidate += "ab_12."[random.below(6)];
      const uint32_t id = names.table.create(names.pool.intern(candidate)).value();
      if (seen.size() <= id) seen.resize(id + 1);
      CAPTURE(candidate);
      REQUIRE_FALSE(seen[id]);
      seen[id] = true;
    }
  });
}

TEST_CASE("name_table: legal replaces characters and hands nothing out") {
  Names names;
  CHECK(names.legal("a..b") == "a_b");
  CHECK(names.legal("1a") == "_1a");
  CHECK(names.legal("") == "_unnamed");
  CHECK(names.legal("max") == "max");
  CHECK(names.table.changed_bases().empty());
  CHECK(names.create("a.b") == "a_b");
}

TEST_CASE("name_table: a newline at the end is illegal too") {
  // torch 2.13 keeps it, for `$` matches before it: the code it then writes does not parse.
  Names names;
  CHECK(names.create("a\n") == "a_");
}

TEST_CASE("name_table: numbers are as long as they like") {
  Names names;
  const auto count = [&](std::string_view base) {
    return names.table.digits(names.table.count(names.pool.intern(base)));
  };
  const std::string nines(25, '9');
  const std::string zeros(25, '0');
  CHECK(names.create("a_" + nines) == "a_" + nines);
  CHECK(count("a") == nines);
  CHECK(names.create("a_" + nines) == "a_1" + zeros);
  CHECK(count("a") == "1" + zeros);
  CHECK(names.create("a") == "a");
  CHECK(names.create("a") == "a_1" + zeros.substr(1) + "1");
  CHECK(names.create("b_1234567890123456798") == "b_1234567890123456798");
  CHECK(names.create("b_1234567890123456798") == "b_1234567890123456799");
  CHECK(names.create("b_1234567890123456798") == "b_1234567890123456800");
  CHECK(names.create("c_999999999999999999") == "c_999999999999999999");
  CHECK(names.create("c_999999999999999999") == "c_1000000000000000000");
  CHECK(names.create("c_999999999999999999") == "c_1000000000000000001");
  // Leading zeros are part of the name and not of the number.
  CHECK(names.create("d_0000000000000000000000001") == "d_0000000000000000000000001");
  CHECK(count("d") == "1");
  CHECK(names.create("d_0000000000000000000000001") == "d_2");
  // Digits that are not a separate number.
  CHECK(names.create("a1234567890123456789") == "a1234567890123456789");
  CHECK(names.create("1234567890123456789") == "_1234567890123456789");
}

TEST_CASE("name_table: define says how text outside of ASCII is parsed") {
  Names names;
  // "ß_٣": Python's \d knows the digit, and its letters are illegal for fx.
  const StringId raw = names.pool.intern("\xc3\x9f_\xd9\xa3");
  const StringId base = names.pool.intern("_");
  names.table.define(raw, names.pool.intern("__3"), base, 3);
  CHECK(names.pool.text(names.table.legal(raw)) == "__3");
  CHECK(names.pool.text(names.table.create(raw)) == "__3");
  CHECK(names.table.count(base) == 3);
  CHECK(names.pool.text(names.table.create(raw)) == "__4");

  const StringId plain = names.pool.intern("\xc3\xa4");
  names.table.define(plain, base, base, NameTable::kNoNumber);
  CHECK(names.pool.text(names.table.create(plain)) == "_");
  names.table.begin_graph();
  CHECK(names.pool.text(names.table.create(plain)) == "_");
  CHECK(names.pool.text(names.table.create(plain)) == "__1");
}
