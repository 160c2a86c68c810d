#include <doctest/doctest.h>

#include <cmath>
#include <limits>
#include <string>

#include "schema/json_reader.h"
#include "schema/json_writer.h"
#include "serde_support.h"
#include "write_value.h"

using namespace fxpress::schema;

namespace {

template <class F>
std::string written(F&& write) {
  StringBuffer buffer;
  write(buffer);
  return std::string(buffer.text());
}

std::string text(std::string_view value) {
  return written([&](Buffer& out) { write_json_string(out, value); });
}

std::string real(double value) {
  return written([&](Buffer& out) { write_json_real(out, value); });
}

// Reads a Point and writes it again.
std::string again(std::string_view json) {
  static const Schema schema = schema_for_tests();
  const Document document = read_json(json, schema, static_cast<uint16_t>(schema.find("Point")));
  return written([&](Buffer& out) {
    JsonWriter writer(out);
    write_value(document, document.root(), writer);
  });
}

// The error for a refused text.
std::string refused(std::string_view json) {
  try {
    again(json);
  } catch (const JsonError& error) {
    return error.what();
  }
  return "accepted";
}

bool mentions(const std::string& message, std::string_view part) {
  INFO(message);
  return message.find(part) != std::string::npos;
}

}  // namespace

TEST_CASE("json: texts are written as Python's json module writes them") {
  CHECK(text("plain") == "\"plain\"");
  CHECK(text("a\"b\\c/") == "\"a\\\"b\\\\c/\"");
  CHECK(text("\n\r\t\f\b") == "\"\\n\\r\\t\\f\\b\"");
  CHECK(text(std::string_view("\0\x1f\x7f", 3)) == "\"\\u0000\\u001f\\u007f\"");
  CHECK(text("\xc3\xa9") == "\"\\u00e9\"");
  CHECK(text("\xe2\x82\xac") == "\"\\u20ac\"");
  CHECK(text("\xf0\x9f\x98\x80") == "\"\\ud83d\\ude00\"");
  CHECK(text("\xed\xa0\x80") == "\"\\ud800\"");  // a surrogate on its own
  const std::string lines(2000, '\n');
  CHECK(text(lines).size() == 4002);
  CHECK(text(std::string(511, 'x') + "\xe2\x82\xac") == '"' + std::string(511, 'x') + "\\u20ac\"");
}

TEST_CASE("json: floats are written as Python's repr writes them") {
  CHECK(real(0.0) == "0.0");
  CHECK(real(-0.0) == "-0.0");
  CHECK(real(1.0) == "1.0");
  CHECK(real(-1.5) == "-1.5");
  CHECK(real(0.1) == "0.1");
  CHECK(real(0.0001) == "0.0001");
  CHECK(real(0.00001) == "1e-05");
  CHECK(real(123456789.0) == "123456789.0");
  CHECK(real(1e15) == "1000000000000000.0");
  CHECK(real(1e16) == "1e+16");
  CHECK(real(1.2345e-7) == "1.2345e-07");
  CHECK(real(1e100) == "1e+100");
  CHECK(real(5e-324) == "5e-324");
  CHECK(real(1.7976931348623157e308) == "1.7976931348623157e+308");
  CHECK(real(std::numeric_limits<double>::infinity()) == "\"Infinity\"");
  CHECK(real(-std::numeric_limits<double>::infinity()) == "\"-Infinity\"");
  CHECK(real(std::nan("")) == "\"NaN\"");
  CHECK(real(9999999999999998.0) == "9999999999999998.0");
  CHECK(real(std::nextafter(1e-4, 0.0)) == "9.999999999999999e-05");
}

TEST_CASE("json: what is read is written the same, defaults filled in, unknown keys left out") {
  const std::string all =
      R"({"x": -5, "y": 1.5, "label": "a", "tags": ["b", "c"], "more": {"k": {"x": 1, "y": 2.0, )"
      R"("label": null, "tags": [], "more": {}, "kind": {"circle": "NaN"}, "on": true}}, )"
      R"("kind": {"name": "n"}, "on": false})";
  CHECK(again(all) == all);
  const std::string least =
      R"({"x": 1, "y": 0.5, "label": null, "tags": [], "more": {}, "kind": null, "on": false})";
  CHECK(again(R"({"x": 1})") == least);
  CHECK(again(R"( { "on":false,"x" :1, "new": [{"a": [1.5e3, true, null, "\u00e9"]}] } )") ==
        least);
  CHECK(again(R"({"x": 123456789012345678901234567890})")
            .starts_with(R"({"x": 123456789012345678901234567890,)"));
  CHECK(again(R"({"x": 1, "y": 2})").find(R"("y": 2.0)") != std::string::npos);
  CHECK(
      again(R"({"x": 1, "label": "\ud83d\ude00\ud800\/\n"})").find(R"("\ud83d\ude00\ud800/\n")") !=
      std::string::npos);
  CHECK(again("{\"x\": 1, \"label\": \"\xf0\x9f\x98\x80\"}").find(R"("\ud83d\ude00")") !=
        std::string::npos);
}

TEST_CASE("json: what is wrong is named with its path") {
  CHECK(mentions(refused(""), "unexpected end"));
  CHECK(mentions(refused("{\"x\": 1"), "unexpected end"));
  CHECK(mentions(refused("{\"x\": 1} 2"), "expected the end of the text"));
  CHECK(mentions(refused("{}"), "'x' of Point is missing"));
  CHECK(mentions(refused("{\"x\": 1, \"x\": 2}"), "duplicate key"));
  CHECK(mentions(refused("{\"x\": 1.0}"), "x: expected an integer"));
  CHECK(mentions(refused("{\"x\": 01}"), "leading 0"));
  CHECK(mentions(refused("{\"x\": true}"), "expected a number"));
  CHECK(mentions(refused("{\"x\": 1, \"on\": 1}"), "on: expected true or false"));
  CHECK(mentions(refused("{\"x\": 1, \"y\": \"one\"}"), "y: expected a number"));
  CHECK(mentions(refused("{\"x\": 1, \"tags\": [\"a\", 2]}"), "tags[1]: expected a string"));
  CHECK(mentions(refused("{\"x\": 1, \"tags\": [\"a\",]}"), "tags[1]"));
  CHECK(mentions(refused("{\"x\": 1, \"tags\": [\"\\q\"]}"), "unknown escape"));
  CHECK(mentions(refused("{\"x\": 1, \"tags\": [\"\\u12g4\"]}"), "four hexadecimal digits"));
  CHECK(mentions(refused("{\"x\": 1, \"tags\": [\"\n\"]}"), "control character"));
  CHECK(mentions(refused("{\"x\": 1, \"tags\": [\"\xff\"]}"), "not valid UTF-8"));
  CHECK(mentions(refused("{\"x\": 1, \"tags\": [\"\xc0\x80\"]}"), "not valid UTF-8"));
  CHECK(mentions(refused("{\"x\": 1, \"tags\": [\"\xed\xa0\x80\"]}"), "not valid UTF-8"));
  CHECK(mentions(refused("{\"x\": 1, \"tags\": [\"\xe2\x82\"]}"), "not valid UTF-8"));
  CHECK(mentions(refused("{\"x\": 1, \"more\": {\"k\": {\"x\": 1}, \"k\": {\"x\": 1}}}"),
                 "duplicate key"));
  CHECK(mentions(refused("{\"x\": 1, \"more\": {\"k\": {\"x\": \"\"}}}"), "more['k'].x"));
  CHECK(mentions(refused("{\"x\": 1, \"kind\": {}}"), "Shape does not have a key"));
  CHECK(
      mentions(refused("{\"x\": 1, \"kind\": {\"square\": 1}}"), "does not have a field 'square'"));
  CHECK(
      mentions(refused("{\"x\": 1, \"kind\": {\"circle\": 1, \"name\": \"n\"}}"), "more than one"));
  CHECK(mentions(refused("{\"x\": 1, \"new\": {\"a\": 1, \"a\": 1}}"), "duplicate key"));
  CHECK(mentions(refused("{\"x\": 1, \"new\": [1, tru]}"), "expected a number"));
}

TEST_CASE("json: a character is noticed at every position of a text") {
  const auto labelled = [](const std::string& label) {
    return R"({"x": 1, "y": 0.5, "label": ")" + label;
  };
  for (size_t size = 1; size < 40; ++size) {
    for (size_t place = 0; place < size; ++place) {
      INFO("place " << place << " of " << size);
      const auto with = [&](std::string_view piece) {
        return labelled(std::string(place, 'a') + std::string(piece) +
                        std::string(size - place - 1, '~'));
      };
      for (const char c : {'\0', '\n', '\x1f'}) {
        CHECK(mentions(refused(with({&c, 1}) + "\"}"), "control character"));
      }
      for (const char c : {'\x80', '\xff'}) {
        CHECK(mentions(refused(with({&c, 1}) + "\"}"), "not valid UTF-8"));
      }
      for (const char* piece : {"!", "#", "[", "]", "\x7f", "\\\"", "\\\\", "\xc3\xa9"}) {
        CHECK(refused(with(piece) + "\"}") == "accepted");
      }
      CHECK(again(with("\\n") + "\"}").find(with("\\n") + "\", \"tags\"") == 0);
      CHECK(mentions(refused(with("!")), "unexpected end"));
      CHECK(mentions(refused(with("\"")), size - place == 1 ? "unexpected end" : "expected '}'"));
    }
  }
}

TEST_CASE("json: a duplicate key is found among any number of keys") {
  for (const size_t keys : {1, 15, 16, 17, 18, 200}) {
    std::string entries;
    for (size_t i = 0; i < keys; ++i) {
      entries += (i == 0 ? "\"" : ", \"") + std::to_string(i) + R"(\u006b": {"x": 1})";
    }
    const auto read = [](const std::string& map) { return refused(R"({"x": 1, "more": )" + map); };
    CHECK(read("{" + entries + "}}") == "accepted");
    for (const size_t i : {size_t{0}, keys / 2, keys - 1}) {
      const std::string again = "\"" + std::to_string(i) + "k\"";
      CHECK(mentions(read("{" + entries + ", " + again + R"(: {"x": 1}}})"), "duplicate key"));
    }
  }
}

TEST_CASE("json: depth is bounded") {
  const auto nested = [](size_t levels) {
    std::string start;
    std::string end;
    for (size_t i = 0; i < levels; ++i) {
      start += "{\"x\": 1, \"more\": {\"k\": ";
      end += "}}";
    }
    return start + "{\"x\": 1}" + end;
  };
  CHECK(refused(nested(400)) == "accepted");
  CHECK(mentions(refused(nested(100000)), "nested too deeply"));
  CHECK(mentions(refused("{\"x\": 1, \"new\": " + std::string(100000, '[')), "nested too deeply"));
}

TEST_CASE("json: no prefix and no changed byte of a text does any harm") {
  const std::string good =
      R"({"x": -5, "y": 1.5e3, "label": "a\u00e9\n", "tags": ["b"], "more": {"k": {"x": 1}}, )"
      R"("kind": {"name": "n"}, "on": true, "new": [1, {"a": null}]})";
  CHECK(refused(good) == "accepted");
  for (size_t i = 0; i < good.size(); ++i) {
    CHECK(refused(good.substr(0, i)) != "accepted");
    for (const char c : {'"', '\\', '{', '}', '[', ']', ',', ':', '0', '-', 'e', '\x01', '\xff'}) {
      std::string changed = good;
      changed[i] = c;
      refused(changed);  // accepted or not: it ends
    }
  }
}

TEST_CASE("schema: what is missing or not known is an error") {
  std::vector<Schema::NewType> types = types_with_code();
  types.pop_back();
  CHECK_THROWS_AS(Schema{types}, SchemaError);
  types = types_with_code();
  types[0].fields[0].shape = "tuple int";
  CHECK_THROWS_AS(Schema{types}, SchemaError);
  types = types_with_code();
  types[0].fields.push_back({"new", "int", true, ""});
  const Schema schema(types);
  CHECK(schema.type(Type::Device).fields.back().id == Field::kUnknown);
  CHECK(schema.difference() == "Device.new");
  CHECK(Schema(types_with_code()).difference().empty());
  CHECK(schema.place(Field::Device_index) == 1);
  types[0].fields.erase(types[0].fields.begin());
  CHECK(Schema(types).place(Field::Device_type) == -1);
  CHECK(Schema(types).place(Field::Device_index) == 0);
  CHECK(Schema(types).difference() == "Device.type");
  types = types_with_code();
  types[0].is_union = true;
  types[0].fields[0].name = "other";
  CHECK(Schema(types).difference().empty());
  CHECK(Schema::owner(Field::Node_target) == Type::Node);
}
