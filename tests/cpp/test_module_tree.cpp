#include <doctest/doctest.h>

#include <string>
#include <vector>

#include "support.h"
#include "unflatten/plan/module_tree.h"

using namespace fxpress::core;
using namespace fxpress::unflatten;

namespace {

struct Fixture {
  StringPool strings;
  ModuleTree tree{strings};

  StringId id(std::string_view text) { return strings.intern(text); }
  std::vector<std::string> names(ModuleId module) {
    std::vector<std::string> result;
    for (const auto& [name, child] : tree.children(module)) {
      result.emplace_back(strings.text(name));
    }
    return result;
  }
};

}  // namespace

TEST_CASE("module_tree: names of calls") {
  CHECK(without_call("a@12") == "a");
  CHECK(without_call("a") == "a");
  CHECK(without_calls("a@1.b.c@22") == "a.b.c");
  CHECK(is_call_of("a", "a"));
  CHECK(is_call_of("a@3", "a"));
  CHECK_FALSE(is_call_of("a@", "a"));
  CHECK_FALSE(is_call_of("a@x", "a"));
  CHECK_FALSE(is_call_of("ab", "a"));
  CHECK_FALSE(is_call_of("b", "a"));
}

TEST_CASE("module_tree: a path lies below another in whole parts") {
  CHECK(is_below("layer1.x", "layer1"));
  CHECK_FALSE(is_below("layer10", "layer1"));
  CHECK_FALSE(is_below("layer1", "layer1"));
  CHECK(is_below("a", ""));
  CHECK_FALSE(is_below("", ""));
}

TEST_CASE_FIXTURE(Fixture, "module_tree: children keep their places, removed ones lose theirs") {
  const ModuleId root = tree.add();
  std::vector<ModuleId> modules;
  for (int i = 0; i < 40; ++i) {
    modules.push_back(tree.add());
    tree.set_child(root, id(std::to_string(i)), modules.back());
  }
  tree.set_child(root, id("3"), modules[0]);
  CHECK(names(root)[3] == "3");
  CHECK(tree.child(root, id("3")) == modules[0]);
  for (int i = 0; i < 40; i += 2) tree.remove_child(root, id(std::to_string(i)));
  tree.remove_child(root, id("0"));
  CHECK(names(root).size() == 20);
  CHECK(names(root)[0] == "1");
  CHECK_FALSE(tree.child(root, id("2")).valid());
  tree.set_child(root, id("2"), modules[2]);
  CHECK(names(root).back() == "2");
}

TEST_CASE_FIXTURE(Fixture, "module_tree: modules may share one table of children") {
  const ModuleId a = tree.add();
  const ModuleId b = tree.add();
  const ModuleId child = tree.add();
  tree.share_children(b, a);
  tree.set_child(a, id("x"), child);
  CHECK(tree.child(b, id("x")) == child);
  CHECK(tree.table_of(a) == tree.table_of(b));
}

TEST_CASE_FIXTURE(Fixture, "module_tree: dotted paths") {
  const ModuleId root = tree.add();
  const auto [parent, name] =
      tree.parent_of(root, "a.b.c", [&](std::string_view) { return tree.add(); });
  tree.set_child(parent, name, tree.add());
  CHECK(tree.find(root, "a.b") == parent);
  CHECK(tree.find(root, "a.b.c").valid());
  CHECK_FALSE(tree.find(root, "a.x").valid());
  CHECK_FALSE(tree.find(root, "a.b.c.d").valid());
}

TEST_CASE_FIXTURE(Fixture, "module_tree: sorting is stable and reaches shared tables once") {
  const ModuleId root = tree.add();
  const ModuleId first = tree.add();
  const ModuleId second = tree.add();
  tree.share_children(second, first);
  tree.set_child(root, id("m@1"), second);
  tree.set_child(root, id("m"), first);
  for (const char* name : {"z", "y", "x@1", "x"}) tree.set_child(first, id(name), tree.add());
  std::vector<std::string> asked;
  tree.sort_children(root, [&](StringId path, StringId call_path) -> size_t {
    asked.emplace_back(strings.text(call_path));
    if (path == id("m")) return 0;
    if (call_path == id("m.x")) return 0;
    if (path == id("m.x")) return 1;
    return 2;
  });
  CHECK(names(root) == std::vector<std::string>{"m@1", "m"});
  CHECK(names(first) == std::vector<std::string>{"x", "x@1", "z", "y"});
  CHECK(asked.size() == 6);
  // Names are found where they are now.
  for (const auto& [name, child] : tree.children(first)) CHECK(tree.child(first, name) == child);
  tree.remove_child(first, id("x@1"));
  tree.set_child(first, id("z"), root);
  CHECK(names(first) == std::vector<std::string>{"x", "z", "y"});
  CHECK(tree.child(first, id("z")) == root);
  CHECK_FALSE(tree.child(first, id("x@1")).valid());
}

TEST_CASE_FIXTURE(Fixture, "module_tree: joined paths") {
  CHECK(joined(strings, id(""), "a") == id("a"));
  CHECK(joined(strings, id("a"), "b@1") == id("a.b@1"));
}
