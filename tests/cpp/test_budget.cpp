#include <doctest/doctest.h>

#include <cstdint>
#include <optional>
#include <string>
#include <thread>

#include "../fuzz/torch_schema.h"
#include "core/budget.h"
#include "schema/json_reader.h"

using fxpress::core::Budget;
using fxpress::core::LimitReached;

namespace {

// "limit: place" of the limit that is reached, or nothing.
template <class F>
std::string reached(F&& f) {
  try {
    f();
  } catch (const LimitReached& error) {
    return error.limit + std::string(": ") + error.what();
  }
  return "";
}

}  // namespace

TEST_CASE("a budget is spent to the last byte") {
  Budget budget(100, 1);
  budget.charge(60);
  budget.charge(0);
  CHECK(reached([&] { budget.charge(41); }) == "memory: the program");
  CHECK(budget.used() == 60);  // what was refused is not charged
  budget.charge(40);
  CHECK(reached([&] { budget.charge(1); }) == "memory: the program");
  budget.charge(0);
}

TEST_CASE("many things of a size do not overflow") {
  Budget budget(100, 1);
  budget.charge(10, 5);
  CHECK(budget.used() == 50);
  budget.charge(0, UINT64_MAX);
  budget.charge(UINT64_MAX, 0);
  for (const auto& [count, each] : {std::pair<uint64_t, uint64_t>{11, 5},
                                    {UINT64_MAX, 2},
                                    {2, UINT64_MAX},
                                    {UINT64_MAX, UINT64_MAX},
                                    {uint64_t{1} << 32u, uint64_t{1} << 32u}}) {
    CHECK(reached([&, c = count, e = each] { budget.charge(c, e); }) == "memory: the program");
  }
  budget.charge(10, 5);
  CHECK(budget.used() == 100);
}

TEST_CASE("a budget grows, and not over the end of its numbers") {
  Budget budget(10, 1);
  budget.grow(5);
  budget.charge(15);
  budget.grow(UINT64_MAX);
  budget.grow(UINT64_MAX);
  budget.charge(uint64_t{1} << 62u);
  CHECK(reached([&] { budget.charge(uint64_t{1} << 62u); }) == "memory: the program");
}

TEST_CASE("errors name the place that was set") {
  Budget budget(0, 1);
  budget.set_place("weights");
  CHECK(reached([&] { budget.charge(1); }) == "memory: weights");
  CHECK(reached([&] { budget.charge(2, 3); }) == "memory: weights");
}

TEST_CASE("levels are given back") {
  Budget budget(0, 2);
  CHECK(budget.depth() == 2);
  for (int i = 0; i < 3; ++i) {
    const Budget::Level outer(budget, "outer");
    const Budget::Level inner(budget, "inner");
    CHECK(reached([&] { const Budget::Level deepest(budget, "deepest"); }) == "depth: deepest");
  }
  Budget none(0, 0);
  CHECK(reached([&] { const Budget::Level level(none, "any"); }) == "depth: any");
}

TEST_CASE("Python's parser of JSON needs the stack of a thread for each level") {
  using fxpress::schema::is_nested_deeper;
  CHECK(is_nested_deeper("[[", 1));
  CHECK(!is_nested_deeper("[[", 2));
  bool far = false;
  bool near = true;
  std::thread([&] {
    far = is_nested_deeper(std::string(1 << 20, '['), SIZE_MAX);
    near = is_nested_deeper(std::string(100, '['), SIZE_MAX);
  }).join();
  CHECK(far);
  CHECK(!near);
}

TEST_CASE("a thread's stack ends") {
  CHECK(fxpress::core::stack_has_space());
  fxpress::core::check_stack("here");
  std::string error;
  std::thread([&] {
    Budget budget(0, SIZE_MAX);
    const auto deeper = [&](const auto& self, size_t levels) -> void {
      const Budget::Level level(budget, "far down");
      volatile char component[4096];
      component[0] = 0;
      if (levels > 0) self(self, levels - 1);
      component[1] = component[0];
    };
    error = reached([&] { deeper(deeper, 1 << 20); });
  }).join();
  CHECK(error == "depth: far down");
}

TEST_CASE("documents are charged, and no deeper than the budget says") {
  using namespace fxpress::schema;
  const auto type = static_cast<uint16_t>(torch_schema().find("Argument"));
  const auto read = [&](std::string_view text, uint64_t memory, size_t depth) {
    return reached([&] {
      Budget budget(memory, depth);
      read_json(text, torch_schema(), type, &budget);
      CHECK(budget.used() > 0);
    });
  };
  constexpr std::string_view kText = R"({"as_nested_tensors": [[{"name": "x"}]]})";
  CHECK(read(kText, 10000, 10) == "");
  CHECK(read(kText, 10, 10) == "memory: the program");
  CHECK(read(kText, 10000, 2).substr(0, 7) == "depth: ");
}
