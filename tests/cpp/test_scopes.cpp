#include <doctest/doctest.h>

#include <vector>

#include "core/scopes.h"
#include "support.h"

using namespace fxpress::core;

TEST_CASE("scopes: equal stacks have one id") {
  StringPool strings;
  ScopeStacks stacks;
  Scope root{strings.intern(""), Scope::kNoType, 0, strings.intern("L")};
  Scope child{strings.intern("a"), 3, 1, strings.intern("La")};
  const std::vector<Scope> both = {root, child};
  const StackId id = stacks.intern(both);
  CHECK(stacks.intern(both) == id);
  CHECK(stacks.intern({&root, 1}) != id);
  CHECK(stacks[id].size() == 2);
  CHECK(stacks[id][1].same_call(child));
  Scope other = child;
  other.call = 2;
  CHECK_FALSE(other.same_call(child));
  other = child;
  other.key = strings.intern("Lb");
  CHECK(other.same_call(child));
  CHECK(stacks.intern(std::vector<Scope>{root, other}) != id);
}

TEST_CASE("scopes: a stack is valid as far as modules lie in each other") {
  StringPool strings;
  const auto depth = [&](const std::vector<const char*>& paths) {
    std::vector<Scope> stack;
    for (const char* path : paths) stack.push_back({strings.intern(path), 0, 0, StringId()});
    return ScopeStacks::valid_depth(stack, strings);
  };
  CHECK(depth({}) == 0);
  CHECK(depth({""}) == 1);
  CHECK(depth({"", "a", "a.b"}) == 3);
  CHECK(depth({"", "a", "b"}) == 2);
  CHECK(depth({"", "layer1", "layer10"}) == 2);
  CHECK(depth({"", "a", "a"}) == 2);
  CHECK(depth({"", "a@1", "a.b"}) == 3);
}
