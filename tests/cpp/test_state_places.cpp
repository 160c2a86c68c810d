#include <doctest/doctest.h>

#include <vector>

#include "support.h"
#include "unflatten/plan/arrange.h"

using namespace fxpress::core;
using namespace fxpress::unflatten;

TEST_CASE("state_places: all calls of a module share its state, missing modules are made") {
  StringPool strings;
  ModuleTree tree(strings);
  const ModuleId root = tree.add();
  const ModuleId a = tree.add();
  const ModuleId a1 = tree.add();
  const ModuleId b = tree.add();
  const ModuleId b1 = tree.add();
  tree.set_child(root, strings.intern("a"), a);
  tree.set_child(root, strings.intern("a@1"), a1);
  tree.set_child(root, strings.intern("ab"), tree.add());
  tree.share_children(a1, a);
  tree.set_child(a, strings.intern("b"), b);
  tree.set_child(a, strings.intern("b@1"), b1);
  StatePlaces places(tree, strings, root);
  CHECK(places.modules_at("") == std::vector<ModuleId>{root});
  CHECK(places.modules_at("a") == std::vector<ModuleId>{a, a1});
  CHECK(places.modules_at("a.b") == std::vector<ModuleId>{b, b1});
  const size_t before = tree.size();
  const std::vector<ModuleId> made = places.modules_at("c.d");
  CHECK(made.size() == 1);
  CHECK(tree.size() == before + 2);
  CHECK(tree.find(root, "c.d") == made[0]);
  CHECK(places.modules_at("c.d") == made);
  CHECK(tree.size() == before + 2);
}

TEST_CASE("state_places: a module of which only later calls exist gets its first name") {
  StringPool strings;
  ModuleTree tree(strings);
  const ModuleId root = tree.add();
  const ModuleId later = tree.add();
  tree.set_child(root, strings.intern("a@2"), later);
  StatePlaces places(tree, strings, root);
  const std::vector<ModuleId> modules = places.modules_at("a");
  CHECK(modules.size() == 2);
  CHECK(modules[0] == later);
  CHECK(tree.child(root, strings.intern("a")) == modules[1]);
}

TEST_CASE("state_places: a child with a call's name and state is a separate module") {
  StringPool strings;
  ModuleTree tree(strings);
  const ModuleId root = tree.add();
  const ModuleId a = tree.add();
  const ModuleId a1 = tree.add();
  const ModuleId a2 = tree.add();
  const ModuleId a11 = tree.add();
  tree.set_child(root, strings.intern("a"), a);
  tree.set_child(root, strings.intern("a@1"), a1);
  tree.set_child(root, strings.intern("a@2"), a2);
  tree.set_child(root, strings.intern("a@1@1"), a11);
  const std::vector<std::string_view> names{"a.w", "a@1.w"};
  StatePlaces places(tree, strings, root, names);
  CHECK(places.modules_at("a") == std::vector<ModuleId>{a, a2});
  CHECK(places.modules_at("a@1") == std::vector<ModuleId>{a1, a11});
}

TEST_CASE("state_places: empty parts are parts like others") {
  StringPool strings;
  ModuleTree tree(strings);
  const ModuleId root = tree.add();
  StatePlaces places(tree, strings, root);
  for (const char* path : {".", "..", ".a", "a.", "a..b"}) {
    const std::vector<ModuleId> made = places.modules_at(path);
    CHECK(made.size() == 1);
    CHECK(made[0] != root);
    CHECK(tree.find(root, path) == made[0]);
  }
}
