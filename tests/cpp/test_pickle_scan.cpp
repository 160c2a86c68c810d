#include <doctest/doctest.h>

#include <string>
#include <string_view>

#include "core/budget.h"
#include "schema/pickle_scan.h"

using fxpress::core::Budget;
using fxpress::core::LimitReached;
using fxpress::schema::PickleError;
using fxpress::schema::PickleFacts;

namespace {

using namespace std::string_literals;

std::string repeated(std::string_view text, size_t count) {
  std::string result;
  for (size_t i = 0; i < count; ++i) result += text;
  return result;
}

PickleFacts scan(const std::string& bytes, uint64_t memory = 1 << 20) {
  Budget budget(memory, 0);
  return fxpress::schema::scan_pickle(bytes, budget);
}

// Why a pickle is refused; nothing when it is not.
std::string problem(const std::string& bytes, uint64_t memory = 1 << 20) {
  try {
    scan(bytes, memory);
  } catch (const PickleError& error) {
    return error.what();
  }
  return "";
}

// A call of a function with what is in a tuple.
std::string call(const std::string& function, const std::string& arguments) {
  return "c" + function + "\n(" + arguments + "tR";
}

const auto kNoBytes = "K\0"s;      // 0
const auto kOne = "K\1"s;          // 1
const auto kText = "X\1\0\0\0a"s;  // 'a'
const auto kLatin = "X\6\0\0\0latin1"s;

}  // namespace

TEST_CASE("what a pickle makes is counted as a tree") {
  const auto check = [](const std::string& bytes, uint64_t elements, size_t depth) {
    CAPTURE(bytes);
    const PickleFacts facts = scan(bytes);
    CHECK(facts.elements == elements);
    CHECK(facts.depth == depth);
    CHECK(!facts.contains_itself);
  };
  check("N.", 1, 1);
  check("\x80\2]."s, 1, 1);
  check("\x88\x89\x86."s, 3, 2);
  check(kOne + "\x85\x85\x85."s, 4, 4);
  check("(" + kOne + kText + "Nt.", 4, 2);
  check("](" + kOne + kOne + "e.", 3, 2);            // appends
  check("]" + kOne + "a" + kOne + "a.", 3, 2);       // append
  check("}" + kText + kOne + "s.", 3, 2);            // set an item
  check("}(" + kText + kOne + kText + "]u.", 5, 2);  // set items
  check("J\0\0\0\0M\0\0\x8a\2\0\0\x87."s, 4, 2);     // integers
  check("G\0\0\0\0\0\0\0\0U\1a\x86."s, 3, 2);        // a float, a short text
  check(kText + "Q.", 1, 1);                         // a tensor
  check("\x8f(Nt\x86)\x86."s, 6, 4);                 // sets, tuples
  check("]q\5h\5j\5\0\0\0\x86\x86."s, 5, 3);         // shared: counts each time
  check("]r\xff\0\0\0j\xff\0\0\0\x86."s, 3, 2);      // in a long place
  check(call("torch\nfoo", kOne) + "}b.", 4, 3);     // built
  check("\x95\0\0\0\0\0\0\0\0\x8c\1a\x94\x8c\1b\x93)\x81h\0\x86."s, 4, 3);
  check("\x8f(NN\x90."s, 3, 2);
  check("ctorch\nfoo\n)\x81."s, 2, 2);
}

TEST_CASE("what is shared often is many elements, found quickly") {
  std::string bytes = "]";
  for (int i = 0; i < 100; ++i) bytes += "q\1h\1\x86"s;
  const PickleFacts facts = scan(bytes + ".");
  CHECK(facts.elements > uint64_t{1} << 60u);  // 2^100 stays a number
  CHECK(facts.depth == 101);
}

TEST_CASE("what contains itself is found") {
  CHECK(scan("]q\1h\1a."s).contains_itself);
  CHECK(scan("]q\1]h\1aa."s).contains_itself);
  CHECK(!scan("]q\1h\1\x86."s).contains_itself);
}

TEST_CASE("bytes that are not a pickle are refused") {
  const std::string kEarly = "it ends too early";
  const std::string kEmpty = "its stack is empty";
  for (const std::string& bytes : {""s, "N"s, "\x80"s, "J\0"s, "X\xff\xff\xff\xff."s, "U\5a."s,
                                   "c"s, "ca\n"s, "ca\nb"s, "h"s, "\x8a\5."s, "G\0."s}) {
    CAPTURE(bytes);
    CHECK(problem(bytes) == kEarly);
  }
  for (const std::string& bytes :
       {"."s,      "a."s,      "Na."s, "s."s,    "Ns."s,  "NNs."s,    "\x85."s,
        "N\x86."s, "NN\x87."s, "R."s,  "NR."s,   "b."s,   "Nb."s,     "Q."s,
        "q\0."s,   "(e."s,     "(u."s, "N(Na."s, "N(R."s, "N(\x85."s, "](Na."s}) {
    CAPTURE(bytes);
    CHECK(problem(bytes) == kEmpty);
  }
  for (const std::string& bytes : {"t."s, "Nt."s, "e."s, "u."s}) {
    CHECK(problem(bytes) == "it removes a mark that it has not set");
  }
  CHECK(problem("h\0."s) == "it uses an object that it has not created");
  CHECK(problem("j\0\0\0\0."s) == "it uses an object that it has not created");
  CHECK(problem("i."s) == "it has the opcode 105");
  CHECK(problem("\x92."s) == "it has the opcode 146");
  CHECK(problem("Nr\0\1\0\0."s) == "it leaves a gap in its memo");
  CHECK(problem("Nr\xff\xff\xff\xff."s) == "it leaves a gap in its memo");
}

TEST_CASE("calls that allocate by a number are refused") {
  const std::string kBySize = "it creates a tensor from sizes";
  CHECK(problem(call("torch\nFloatTensor", kOne) + ".") == kBySize);
  CHECK(problem(call("torch.cuda\nHalfStorage", kOne) + ".") == kBySize);
  CHECK(problem(call("torch\nFloatTensor", "") + ".") == "");
  CHECK(problem(call("torchx\nFloatTensor", kOne) + ".") == "");
  const std::string kBytes = "it creates a bytearray from a size";
  CHECK(problem(call("builtins\nbytearray", kOne) + ".") == kBytes);
  CHECK(problem(call("builtins\nbytearray", "N") + ".") == kBytes);
  CHECK(problem(call("builtins\nbytearray", kText) + ".") == "");
  CHECK(problem(call("builtins\nbytearray", "]") + ".") == "");
  CHECK(problem(call("builtins\nbytearray", "") + ".") == "");
  CHECK(problem(call("_codecs\nencode", kText + kLatin) + ".") == "");
  CHECK(problem(call("_codecs\nencode", kText) + ".") == "");
  CHECK(problem(call("_codecs\nencode", kText + kText) + ".") ==
        "it has a text in an unknown encoding");
  CHECK(problem(call("torch\nFloatTensor", kNoBytes) + ".") == kBySize);
}

TEST_CASE("calls whose cost is not in the pickle are refused") {
  const std::string tensor = call("torch._utils\n_rebuild_tensor_v2", kOne);
  const std::string storage = "(" + kText + "N" + kText + "tQ";
  for (const std::string name : {"set", "Counter", "OrderedDict", "Size", "bytearray"}) {
    CAPTURE(name);
    const std::string wanted = "it makes a " + name + " of a tensor or a storage";
    CHECK(problem(call("x\n" + name, tensor) + ".") == wanted);
    CHECK(problem(call("x\n" + name, storage) + ".") == wanted);
    CHECK(problem(call("x\n" + name, call("x\nother", "")) + ".") == wanted);
    CHECK(problem(call("x\n" + name, call("x\n" + name, "]")) + ".") == "");
    CHECK(problem(call("x\n" + name, call("_codecs\nencode", kText + kLatin)) + ".") == "");
  }
  CHECK(problem("cx\nbytearray\n" + call("torch\nSize", kOne + "\x85") + "R.") ==
        "it calls a function with arguments that are not a tuple");
  CHECK(problem(call("_codecs\nencode", kText + kLatin + kText) + ".") ==
        "it has a text in an unknown encoding");
}

TEST_CASE("a state for a tensor is refused") {
  const std::string kBuilt = "it changes a tensor that it has created";
  for (const std::string& made :
       {call("torch._utils\n_rebuild_tensor_v2", kOne), call("torch\nTensor", ""),
        call("torch._tensor\n_rebuild_from_type_v2", kOne), "ctorch\nFloatTensor\n)\x81"s,
        call("torch._utils\n_rebuild_parameter", kOne) + "q\0Nh\0"s,
        "ctorch.nn.parameter\nParameter\n)\x81"s}) {
    CAPTURE(made);
    CHECK(problem(made + ")b.") == kBuilt);
    CHECK(problem(made + ".") == "");
  }
  CHECK(problem(call("collections\nOrderedDict", "") + "}b.") == "");
  CHECK(problem("ctorch\nFloatTensor\n}b.") == "");  // a class, which torch refuses
}

TEST_CASE("calls within calls are checked") {
  const auto rebuilt = [](const std::string& function, const std::string& arguments) {
    return call("torch._tensor\n_rebuild_from_type_v2", "c" + function + "\nN(" + arguments + "t");
  };
  CHECK(problem(rebuilt("builtins\nbytearray", kOne) + ".") ==
        "it creates a bytearray from a size");
  CHECK(problem(rebuilt("builtins\nbytearray", kText) + ".") == "");
  const std::string inner = "cx\n_rebuild_from_type_v2\nN(cbuiltins\nbytearray\nN(" + kOne + "tt";
  CHECK(problem(call("x\n_rebuild_from_type_v2", inner) + ".") ==
        "it creates a bytearray from a size");
  // A list of arguments that is its own third item.
  CHECK_THROWS_AS(scan("cx\n_rebuild_from_type_v2\n]q\1(cx\n_rebuild_from_type_v2\nNh\1eR."s),
                  LimitReached);
}

TEST_CASE("keys whose hashes a file can choose are few") {
  const std::string kMany = "it has too many keys that are neither texts nor numbers";
  const std::string small = "\x8a\x08" + std::string(8, '\x7f');
  const std::string large = "\x8a\x09" + std::string(9, '\x7f');
  const auto dict = [](const std::string& key, size_t count) {
    return "}(" + repeated(key + "N", count) + "u";
  };
  for (const std::string& key : {large, "N\x85"s, "]"s, call("builtins\ncomplex", "")}) {
    CAPTURE(key);
    CHECK(scan(dict(key, 2000) + ".", 1 << 24).elements > 2000);
    CHECK(problem(dict(key, 2001) + ".", 1 << 24) == kMany);
    CHECK(problem("}" + repeated(key + "Ns", 2001) + ".", 1 << 24) == kMany);
    CHECK(problem(dict(key, 1000) + dict(key, 1001) + "\x86.", 1 << 24) == kMany);
    const std::string list = "](" + repeated(key, 2001) + "e";
    CHECK(problem(call("builtins\nset", list) + ".", 1 << 24) == kMany);
    CHECK(problem(call("collections\nOrderedDict", list) + ".", 1 << 24) == kMany);
    CHECK(problem(call("x\nother", list) + ".", 1 << 24) == "");
    CHECK(problem(list + ".", 1 << 24) == "");
  }
  for (const std::string& key : {small, kText, kOne, "N"s, "cx\ny\n"s}) {
    CHECK(problem(dict(key, 3000) + ".", 1 << 24) == "");
  }
  for (const std::string& value : {large, "N\x85"s}) {
    CHECK(problem("}(" + repeated("N" + value, 3000) + "u.", 1 << 24) == "");
  }
  CHECK(problem("(NN" + kText + "tQ.") == "");
  CHECK(problem("(NNN\x85tQ.") == "the key of a storage is not a text");
}

TEST_CASE("objects are charged") {
  CHECK_THROWS_AS(scan(repeated("N", 20000) + "."), LimitReached);
  CHECK_THROWS_AS(scan(repeated("(", 20000)), LimitReached);
  CHECK_THROWS_AS(scan("N" + repeated("q\1q\2q\3"s, 10000) + repeated("\x85", 20000) + "."),
                  LimitReached);
  CHECK_THROWS_AS(scan("cx\ny\nq\1" + repeated("h\1)R"s, 2000) + "."), LimitReached);
  CHECK_THROWS_AS(scan(repeated("NQ", 2000) + "."), LimitReached);
  // Each call gets the shared objects again.
  const std::string many = "(" + repeated("N", 5000) + "tq\2cx\ny\nq\1";
  CHECK(scan(many + "h\1h\2R."s, 2 << 20).elements > 5000);
  CHECK_THROWS_AS(scan(many + repeated("h\1h\2R"s, 100) + ".", 2 << 20), LimitReached);
  // So is what would be copied: items of a list in it, and texts.
  const std::string list = "](" + repeated("N", 2000) + "eq\2cx\ny\nq\1";
  CHECK_THROWS_AS(scan(list + repeated("h\1h\2\x85R"s, 10) + "."), LimitReached);
  const std::string text = "X\0\0\1\0"s + std::string(1 << 16, 'a') + "q\2cx\ny\nq\1";
  CHECK_THROWS_AS(scan(text + repeated("h\1h\2\x85R"s, 20) + "."), LimitReached);
  // The copy of a copy is charged again.
  const std::string doubled = "q\3h\1h\3h\3\x86R"s;
  CHECK(problem(text + "h\2" + repeated(doubled, 3) + ".", 8 << 20) == "");
  CHECK_THROWS_AS(scan(text + "h\2" + repeated(doubled, 8) + ".", 8 << 20), LimitReached);
  // So are the bytes that are an item each, whatever names the function.
  for (const std::string& set : {"cbuiltins\nset\nq\4"s,
                                 "\x8c\x8"
                                 "builtins\x8c\3set\x93q\4"s}) {
    CAPTURE(set);
    CHECK(scan(text + set + "h\4h\2\x85R.", 8 << 20).elements > 1 << 16);
    CHECK_THROWS_AS(scan(text + set + "h\4h\2\x85R.", 4 << 20), LimitReached);
    CHECK_THROWS_AS(scan(text + set + "h\4h\4h\2\x85R\x85R.", 8 << 20), LimitReached);
  }
  // Opcodes that make nothing need time.
  for (const std::string& opcode : {"h\1"s, "q\1"s, "\x80\2"s, "\x95\0\0\0\0\0\0\0\0"s}) {
    CHECK_THROWS_AS(scan("Nq\1" + repeated(opcode, 20000) + "."), LimitReached);
  }
}
