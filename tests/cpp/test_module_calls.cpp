#include <doctest/doctest.h>

#include <vector>

#include "support.h"
#include "unflatten/plan/module_calls.h"

using namespace fxpress::core;
using namespace fxpress::unflatten;

TEST_CASE("scopes: equal stacks have one id") {
  StringPool strings;
  ModuleCallStacks stacks;
  ModuleCall root{strings.intern(""), ModuleCall::kNoType, 0, strings.intern("L")};
  ModuleCall child{strings.intern("a"), 3, 1, strings.intern("La")};
  const std::vector<ModuleCall> both = {root, child};
  const StackId id = stacks.intern(both);
  CHECK(stacks.intern(both) == id);
  CHECK(stacks.intern({&root, 1}) != id);
  CHECK(stacks[id].size() == 2);
  CHECK(stacks[id][1].same_call(child));
  ModuleCall other = child;
  other.call = 2;
  CHECK_FALSE(other.same_call(child));
  other = child;
  other.key = strings.intern("Lb");
  CHECK(other.same_call(child));
  CHECK(stacks.intern(std::vector<ModuleCall>{root, other}) != id);
}

TEST_CASE("scopes: a stack is valid as far as modules are nested") {
  StringPool strings;
  const auto depth = [&](const std::vector<const char*>& paths) {
    std::vector<ModuleCall> stack;
    for (const char* path : paths) stack.push_back({strings.intern(path), 0, 0, StringId()});
    return ModuleCallStacks::valid_depth(stack, strings);
  };
  CHECK(depth({}) == 0);
  CHECK(depth({""}) == 1);
  CHECK(depth({"", "a", "a.b"}) == 3);
  CHECK(depth({"", "a", "b"}) == 2);
  CHECK(depth({"", "layer1", "layer10"}) == 2);
  CHECK(depth({"", "a", "a"}) == 2);
  CHECK(depth({"", "a@1", "a.b"}) == 3);
}
