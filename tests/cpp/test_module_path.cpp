#include <doctest/doctest.h>

#include "tracking/module_path.h"

using fxpress::tracking::without_tables;

TEST_CASE("tables leave paths") {
  CHECK(without_tables("L['m']._modules['a']._modules['0']._parameters['weight']") ==
        "L['m'].a.0.weight");
  CHECK(without_tables("L['m']._buffers[\"b\"].x") == "L['m'].b.x");
  CHECK(without_tables("._modules['a']._modules['b']") == ".a.b");
  CHECK(without_tables("L['m']._modules['\xc3\xa9']") == "L['m'].\xc3\xa9");
  CHECK(without_tables("getattr(L['m']._modules['s'], '0')") == "getattr(L['m'].s, '0')");
  CHECK(without_tables("._modules['._modules']['a']") == ".._modules['a']");
  CHECK(without_tables("._._modules['a'][") == "._.a[");
}

TEST_CASE("what is no table stays") {
  for (const char* path :
       {"", "._", "._modules", "._modules[", "._modules['", "._modules['a", "._modules['a'",
        "._modules['']", "._modules['a\"]", "._modules['a[0]']", "._modules['a'b']", "._modules[a]",
        "._other['a']", "_modules['a']", "x.modules['a']", "._modules'a'"}) {
    CHECK(without_tables(path) == path);
  }
}
