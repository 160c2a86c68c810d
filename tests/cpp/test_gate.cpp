#include <doctest/doctest.h>

#include <initializer_list>
#include <string>
#include <string_view>

#include "../fuzz/torch_schema.h"
#include "schema/gate.h"
#include "schema/json_reader.h"

using namespace fxpress::schema;

namespace {

// Stands for Python's tables: one word that is not ASCII.
bool is_known_word(std::string_view text) {
  return text == "ключ";
}

// Which of the texts the rule decides about otherwise than wanted.
void check_rule(Rule rule, bool wanted, std::initializer_list<std::string_view> texts) {
  for (const std::string_view text : texts) {
    CAPTURE(name_of(rule));
    CAPTURE(text);
    CHECK(passes(rule, text, is_known_word) == wanted);
  }
}
void taken(Rule rule, std::initializer_list<std::string_view> texts) {
  check_rule(rule, true, texts);
}
void refused(Rule rule, std::initializer_list<std::string_view> texts) {
  check_rule(rule, false, texts);
}

Document read(std::string_view type, std::string_view text) {
  return read_json(text, torch_schema(), static_cast<uint16_t>(torch_schema().find(type)));
}

// "path: value fault" of the text that does not pass, or nothing.
std::string verdict(std::string_view type, std::string_view text) {
  try {
    pass_gate(read(type, text), is_known_word);
  } catch (const GateError& error) {
    return error.path() + ": " + error.value() + " " + error.fault();
  }
  return "";
}

// A node with other metadata.
std::string node(std::string_view metadata, std::string_view inputs = "") {
  return R"({"target": "torch.ops.aten.add.Tensor", "outputs": [], "inputs": [)" +
         std::string(inputs) + R"(], "metadata": {)" + std::string(metadata) + "}}";
}

}  // namespace

TEST_CASE("names of values are identifiers") {
  for (const Rule rule : {Rule::kIdentifier, Rule::kOptionalIdentifier, Rule::kSymbol}) {
    taken(rule, {"x", "_", "x1", "lambda", "ключ"});
    refused(rule,
            {"1x", "a b", "a.b", "a=1", "x\n", "x\xc2\xa0", "кл", std::string_view("a\0", 2)});
  }
  taken(Rule::kOptionalIdentifier, {""});
  refused(Rule::kIdentifier, {""});
  refused(Rule::kSymbol, {""});
  CHECK(!passes(Rule::kIdentifier, "ключ", nullptr));  // nobody knows
}

TEST_CASE("names of arguments are names, or no Python at all") {
  taken(Rule::kArgumentName, {"x", "a b", "b-c", "x.y", "ключ"});
  refused(Rule::kArgumentName, {"", "x=1", "x, y", "*x", "x:int", "x)", "x#", "x\n", "x\t"});
}

TEST_CASE("names of state lead to no table of a module") {
  taken(Rule::kStateName, {"w", "a.b.0", "_x", "a b", "__x", "____", "forwards"});
  refused(Rule::kStateName, {"", ".", "a.", ".a", "a..b", "__class__", "a.__init__.b", "forward",
                             "_parameters", "a._modules.b", "training", "a'b", "a\"b", "a\\b"});
}

TEST_CASE("paths of modules have indices") {
  taken(Rule::kModulePath, {"", "a.b", "a[0]", "L['self'].a", "get_submodule('a-b')", "a.forward",
                            "_modules['f(x)[0]']"});
  refused(Rule::kModulePath, {"__class__", "a.__init__", "'a'", "a['b", "a['b'", "['a'b']", "a'",
                              "a[\"b\"]", "['f('x')']", "a\n"});
  taken(Rule::kModuleStack, {"", "k,a.b,C", "k,L['a'].__closure__,C;l,,D", "a(1, 2),b,c"});
  refused(Rule::kModuleStack, {"k','a,C", "k,a'b,C", "k,a,C'", "k,a,C;k,\"a,C"});
}

TEST_CASE("texts in quotes cannot leave them") {
  for (const Rule rule : {Rule::kTypeName, Rule::kKey, Rule::kConstantInput, Rule::kVersion}) {
    taken(rule, {"", "a.b<c>", "f(x)", "# x", "ключ", "\xe2\x80\xa8"});
    refused(rule, {"'", "\"", "\\", "\n", "\r", "\x7f", "\x1b[0m", "\xc2\x9b[0m"});
  }
  taken(Rule::kLiteral, {"", "'\"\\\n"});
}

TEST_CASE("operators are words, or texts of an extension") {
  taken(Rule::kOperator, {"torch.ops.aten.add.Tensor", "a::b", "<built-in function x>", "#a:f(x)"});
  refused(Rule::kOperator, {"f(x)", "a[0]", "a;b", "a\nb", "#a'b", "#a\\", "a#b"});
}

TEST_CASE("expressions are sympy's notation") {
  taken(Rule::kExpression,
        {"s0", "Symbol('s0', integer=True)", "Float(\"1.5e+3\") ** 2", "~a|b^c"});
  refused(Rule::kExpression, {"", "a.b['c']", "{}", "a;b", "'a", "'a b'", "'f()'", "\"a'", "a\n",
                              "$", "lambda x: 1", "@"});
}

TEST_CASE("JSON is one line of an object or a list") {
  taken(Rule::kJsonObject, {"{}", "{\"a\": 1}"});
  refused(Rule::kJsonObject, {"", "[]", " {}", "{\n}"});
  taken(Rule::kTreeSpec, {"[1, {}]"});
  refused(Rule::kTreeSpec, {"", "{}", "[\n]"});
}

TEST_CASE("traces have lines, comments have one") {
  const std::string trace = "File \"a\", line 1\n\tx = 'y'\f\n" + std::string(70, 'x');
  taken(Rule::kStackTrace, {"", trace, "'''"});
  refused(Rule::kStackTrace, {"a\rb", "\x1b[2J", "\x7f", "\xc2\x80", std::string_view("\0", 1)});
  for (const char* bad : {"\r", "\x1b", "\x7f"}) {  // behind whole blocks, and within one
    CHECK(!passes(Rule::kStackTrace, std::string(64, 'x') + bad, nullptr));
    CHECK(!passes(Rule::kStackTrace, std::string(30, 'x') + bad + std::string(60, 'x'), nullptr));
  }
  taken(Rule::kLine, {"", "a 'b' \"c\" \\d", "# x", "''"});
  refused(Rule::kLine, {"a\nb", "'''", "x\"\"\"", "a\\", "\t"});
}

TEST_CASE("words and names of records") {
  taken(Rule::kWord, {"cuda:0", "a.b+c-d/e", "1"});
  refused(Rule::kWord, {"", "a b", "ключ", "a'", "f()"});
  taken(Rule::kRecordName, {"weight_0", "a b", "...", "ключ"});
  refused(Rule::kRecordName,
          {"", ".", "..", "a/b", "../a", "a\\b", "a\n", std::string_view("\0", 1)});
}

TEST_CASE("rules of two texts take no single one") {
  for (const Rule rule : {Rule::kNone, Rule::kNodeMetadata, Rule::kGraphMetadata, Rule::kCount}) {
    CHECK(!passes(rule, "a", nullptr));
  }
}

TEST_CASE("rules have names") {
  for (size_t i = 0; i < static_cast<size_t>(Rule::kCount); ++i) {
    const auto rule = static_cast<Rule>(i);
    CHECK(rule_named(name_of(rule)) == rule);
    CHECK(std::string_view(fault_of(rule)).find(' ') != std::string_view::npos);
  }
  CHECK(name_of(Rule::kGuard) == "Guard");
  CHECK(rule_named("Nobody") == Rule::kNone);
}

TEST_CASE("documents pass by the rules of their fields") {
  CHECK(verdict("TensorArgument", R"({"name": "x"})") == "");
  CHECK(verdict("TensorArgument", R"({"name": "x=1"})") == "name: x=1 is not an identifier");
  CHECK(verdict("ExternKernelNodes", R"({"nodes": []})") == "");
  CHECK(verdict("AOTInductorModelPickleData",  // nothing reads it: lines
                R"({"library_basename": "a", "input_names": ["b\n"], "output_names": []})") ==
        "input_names[0]: b\n is not a single line of text");
}

TEST_CASE("errors say where the text is") {
  constexpr std::string_view kSignature = R"({"fqn": "", "signature": {"inputs": [], "outputs": [],
      "in_spec": "[]", "out_spec": "[]", "forward_arg_names": ["x", "y=f"]}})";
  CHECK(verdict("ModuleCallEntry", kSignature) ==
        "signature.forward_arg_names[1]: y=f cannot be the name of an argument");
  CHECK(verdict("PayloadConfig", R"({"config": {"a'": {"path_name": "p", "is_param": true,
      "use_pickle": false, "tensor_meta": null}}})") ==
        "config['a'']: a' cannot be the name of a parameter, buffer or constant");
  CHECK(verdict("PayloadConfig", R"({"config": {"a": {"path_name": "../p", "is_param": true,
      "use_pickle": false, "tensor_meta": null}}})") ==
        "config['a'].path_name: ../p cannot be the name of a record");
  CHECK(verdict("Argument", R"({"as_nested_tensors": [[], [{"name": "x"}, {"name": "1"}]]})") ==
        "as_nested_tensors[1][1].name: 1 is not an identifier");
  CHECK(verdict("Argument", R"({"as_string_to_argument": {"k": {"as_operator": "f;g"}}})") ==
        "as_string_to_argument['k'].as_operator: f;g cannot be the name of an operator");
}

TEST_CASE("texts of inputs are compared, texts of nodes are literals") {
  constexpr std::string_view kText = R"({"as_string": "it's"})";
  CHECK(verdict("Argument", kText) == "");
  CHECK(verdict("Node", node("", R"({"name": "", "arg": {"as_string": "it's"}})")) == "");
  constexpr std::string_view kFault = "it's is a string that torch cannot compare with an input";
  CHECK(verdict("UserInputSpec", R"({"arg": {"as_string": "it's"}})") ==
        "arg.as_string: " + std::string(kFault));
  CHECK(verdict("UserInputSpec", R"({"arg": {"as_strings": ["a", "it's"]}})") ==
        "arg.as_strings[1]: " + std::string(kFault));
  CHECK(verdict("UserInputSpec",
                R"({"arg": {"as_string_to_argument": {"k": {"as_tensor": {"name": "1"}}}}})") ==
        "arg.as_string_to_argument['k'].as_tensor.name: 1 is not an identifier");
}

TEST_CASE("metadata of nodes passes by its key") {
  CHECK(verdict("Node", node(R"("stack_trace": "a\nb", "nn_module_stack": "k,a,C",
      "torch_fn": "f;g", "source_fn_stack": "f", "custom": "{}", "from_node": "[", "other": "\n")")) ==
        "");
  CHECK(verdict("Node", node(R"("stack_trace": "", "nn_module_stack": "", "custom": "")")) == "");
  for (const auto& [entry, value] : std::initializer_list<std::pair<const char*, const char*>>{
           {R"("stack_trace": "\r")", "\r"},
           {R"("nn_module_stack": "k,a'b,C")", "k,a'b,C"},
           {R"("torch_fn": "a\nb")", "a\nb"},
           {R"("source_fn_stack": "'''")", "'''"},
           {R"("custom": "[]")", "[]"}}) {
    CHECK(verdict("Node", node(entry)).find(std::string(": ") + value + " cannot be in the") !=
          std::string::npos);
  }
  // A stack that has passed is not looked at again; another one is.
  const std::string good = node(R"("nn_module_stack": "k,a,C")");
  const std::string bad = node(R"("nn_module_stack": "k,a'b,C")");
  const auto graph = [](const std::string& nodes) {
    return R"({"inputs": [], "outputs": [], "nodes": [)" + nodes +
           R"(], "tensor_values": {}, "sym_int_values": {}, "sym_bool_values": {}})";
  };
  CHECK(verdict("Graph", graph(good + "," + good)) == "");
  CHECK(verdict("Graph", graph(good + "," + bad + "," + bad)) ==
        "nodes[1].metadata['nn_module_stack']: k,a'b,C cannot be in the metadata of a node");
  // Of one that begins like it, what is new.
  const std::string longer = "k,a,C;l,b['x'],D";
  for (const char* other : {"k,a,C;l,b['x'],D'", "k,a,C;l,b['x", "k,a,C;l,b['y],D", "k,a'", "'",
                            "k,a,C;l,b['x'],D;'"}) {
    const auto stack = [](const std::string& text) {
      return node(R"("nn_module_stack": ")" + text + '"');
    };
    CHECK(verdict("Graph", graph(stack(longer) + "," + stack("k,a,C") + "," + stack(longer))) ==
          "");
    CHECK(verdict("Graph", graph(stack(longer) + "," + stack(other)))
              .starts_with("nodes[1].metadata['nn_module_stack']: " + std::string(other)));
  }
}

TEST_CASE("a plain value has no field and no rule") {
  Document document(torch_schema());
  pass_gate(document, nullptr);  // null
  DocumentBuilder builder(torch_schema());
  builder.string("'\n");
  pass_gate(builder.finish(), nullptr);
}
