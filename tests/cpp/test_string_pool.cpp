#include <doctest/doctest.h>

#include <string>
#include <string_view>
#include <vector>

#include "core/string_pool.h"
#include "core/text_hash.h"
#include "support.h"

using namespace fxpress::core;
using namespace std::string_literals;
using namespace std::string_view_literals;

TEST_CASE("string_pool: equal text has one id and ids count from 0") {
  StringPool pool;
  CHECK(pool.size() == 0);
  const std::string copy = "add";
  CHECK(pool.intern("add").value() == 0);
  CHECK(pool.intern("mul").value() == 1);
  CHECK(pool.intern(copy).value() == 0);
  CHECK(pool.size() == 2);
}

TEST_CASE("string_pool: text is compared to its last byte") {
  StringPool pool;
  const std::vector<std::string_view> texts = {"",      "a",      "A",      "a ",
                                               "a\0"sv, "a\0b"sv, "a\0c"sv, "\xc3\xa4"};
  for (uint32_t i = 0; i < texts.size(); ++i) CHECK(pool.intern(texts[i]).value() == i);
  for (uint32_t i = 0; i < texts.size(); ++i) CHECK(pool.text(StringId(i)) == texts[i]);
}

TEST_CASE("string_pool: text stays where it is while the pool grows") {
  StringPool pool;
  std::vector<std::string_view> views;
  for (uint32_t i = 0; i < 20000; ++i) {
    views.push_back(pool.text(pool.intern("node_" + std::to_string(i))));
  }
  CHECK(pool.size() == 20000);
  for (uint32_t i = 0; i < views.size(); ++i) {
    REQUIRE(views[i] == "node_" + std::to_string(i));
    REQUIRE(pool.intern(views[i]).value() == i);
    REQUIRE(pool.text(StringId(i)).data() == views[i].data());
  }
}

TEST_CASE("string_pool: a string may be larger than a block") {
  StringPool pool;
  const std::string large(100000, 'x');
  const StringId small_id = pool.intern("before");
  const StringId large_id = pool.intern(large);
  const StringId empty_id = pool.intern("");
  const StringId after_id = pool.intern("after");
  CHECK(pool.text(small_id) == "before");
  CHECK((pool.text(large_id) == large));
  CHECK(pool.text(empty_id).empty());
  CHECK(pool.text(after_id) == "after");
}

TEST_CASE("string_pool: a part of interned text can be interned") {
  StringPool pool;
  StringId id = pool.intern(std::string(300, 'a'));
  for (size_t size = 300; size > 0; --size) id = pool.intern(pool.text(id).substr(1));
  CHECK(pool.text(id).empty());
  CHECK(pool.size() == 301);
}

TEST_CASE("text_hash: equal text has one hash, other text another one") {
  const TextHash hash;
  std::vector<std::string> texts = {"\0"s, "\0\0"s};
  for (size_t size = 0; size < 40; ++size) {
    texts.push_back(std::string(size, 'a'));
    if (size > 0) texts.push_back(std::string(size - 1, 'a') + 'b');
    if (size > 0) texts.push_back('b' + std::string(size - 1, 'a'));
  }
  TextMap<size_t> known;
  for (const std::string& text : texts) known.emplace(text, known.size());
  for (const std::string& text : texts) {
    CHECK(known.contains(std::string_view(text)));
    for (const std::string& other : texts) CHECK((hash(text) == hash(other)) == (text == other));
  }
}

TEST_CASE("text_hash: texts that std::hash of libstdc++ maps to one number") {
  const TextHash hash;
  CHECK(hash("jIvUTlUyFByVWisZjPiWrRKTHOuifAdM") != hash("opEjCmvHlTREeOZVqEjMkSMahX16J54i"));
  std::vector<size_t> places(64);
  for (uint32_t i = 0; i < 64000; ++i) ++places[hash("node_" + std::to_string(i)) % places.size()];
  for (const size_t count : places) CHECK((count > 800 && count < 1200));
}
