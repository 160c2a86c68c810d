#include <doctest/doctest.h>

#include "capture/text/export_root.h"

using fxpress::capture::mentions_export_root;
using fxpress::capture::without_export_root;

TEST_CASE("the module around the callable leaves names") {
  CHECK(without_export_root("L__self____export_root_child") == "L__self___child");
  CHECK(without_export_root("L__self____export_root__x") == "L__self____x");
  CHECK(without_export_root("l__self____export_root_child_1") == "l__self___child_1");
  CHECK(without_export_root("L['self']._export_root.child") == "L['self'].child");
  CHECK(without_export_root("L['self']._export_root[0]") == "L['self'][0]");
  CHECK(without_export_root("f(L['self']._export_root, L['self']._export_root.x)") ==
        "f(L['self'], L['self'].x)");
  CHECK(without_export_root("L['self']._export_root") == "L['self']");
  CHECK(without_export_root("_export_root.l.weight") == "l.weight");
  CHECK(without_export_root("self____export_root_ls_0") == "self___ls_0");
  CHECK(without_export_root("dict_type_L__self____export_root____dict__") ==
        "dict_type_L__self______dict__");
}

TEST_CASE("what the user called alike stays") {
  for (const char* name :
       {"", "L__self___child", "my_export_root.x", "_export_root", "_export_roots.x",
        "G['_export_root'].x", "L['self'].my_export_root.x", "XL['self']._export_root.x",
        "L['self']._export_root_x", "L__self____export_root", "myself____export_root_x",
        "x._export_root.y"}) {
    CHECK(without_export_root(name) == name);
  }
  CHECK(without_export_root("L['self']._export_root._export_root.x") == "L['self']._export_root.x");
  CHECK(without_export_root("_export_root._export_root.x") == "_export_root.x");
  CHECK(without_export_root("L__self____export_root__export_root_x") == "L__self____export_root_x");
}

TEST_CASE("names are looked up in the module first") {
  CHECK(mentions_export_root("L['self']._export_root"));
  CHECK_FALSE(mentions_export_root("L['self'].root"));
}
