#include "schema/gate.h"

#include <algorithm>
#include <array>
#include <vector>

#include "archive/record_name.h"
#include "core/characters.h"

namespace fxpress::schema {

namespace {

struct RuleInfo {
  std::string_view name;
  const char* fault;
};
constexpr std::array kRules = {
#define FXPRESS_RULE(name, fault) RuleInfo{std::string_view(#name).substr(1), fault},
#include "schema/gate_rules.def"
#undef FXPRESS_RULE
};

// ---- characters ---------------------------------------------------------------------------------

// The types of text in which an ASCII character may occur, as bits.
enum Part : uint8_t {
  kInIdentifier = 1,
  kInArgument = 2,    // name of an argument; "-", "." and " " in it only cause Python errors
  kInOperator = 4,    // an operator's name
  kInExpression = 8,  // an expression, outside of quotes
  kInNumber = 16,     // digits or a symbol's name, inside the quotes of an expression
  kInWord = 32,
  kInQuotes = 64,  // characters that end neither a quoted text nor its line
  kInLine = 128,
};

constexpr bool is_one_of(char c, std::string_view characters) {
  return characters.find(c) != std::string_view::npos;
}

constexpr std::array<uint8_t, 128> kParts = [] {
  std::array<uint8_t, 128> parts{};
  for (int i = 0; i < 128; ++i) {
    const auto c = static_cast<char>(i);
    const bool is_alnum = core::is_name_part(c);
    const bool is_control = c < ' ' || c == 0x7f;
    uint8_t& part = parts[static_cast<size_t>(i)];
    if (is_alnum) part |= kInIdentifier;
    if (is_alnum || is_one_of(c, "-. ")) part |= kInArgument;
    if (is_alnum || is_one_of(c, "-.:<> ")) part |= kInOperator;
    if (is_alnum || is_one_of(c, " .,()+-*/%<>=!&|~^")) part |= kInExpression;
    if (is_alnum || is_one_of(c, ".+-")) part |= kInNumber;
    if (is_alnum || is_one_of(c, ".:+-/")) part |= kInWord;
    if (!is_control && !is_one_of(c, "'\"\\")) part |= kInQuotes;
    if (!is_control) part |= kInLine;
  }
  return parts;
}();

bool is_part(char c, Part part) {
  return core::is_ascii(c) && (kParts[static_cast<unsigned char>(c)] & part) != 0;
}

// Whether all characters may occur in texts of type `part`. Characters outside ASCII always may,
// because the reader has checked the UTF-8, and none of their bytes ends a name, a quoted text or a
// line of Python or C++.
bool is_all(std::string_view text, Part part) {
  return std::ranges::all_of(text, [&](char c) { return !core::is_ascii(c) || is_part(c, part); });
}
bool is_all_ascii(std::string_view text, Part part) {
  return std::ranges::all_of(text, [&](char c) { return is_part(c, part); });
}

// ---- rules --------------------------------------------------------------------------------------

bool is_identifier(std::string_view text, IsUnicodeIdentifier is_unicode) {
  if (text.empty() || core::is_digit(text.front())) return false;
  return is_all_ascii(text, kInIdentifier) ||
         (is_all(text, kInIdentifier) && is_unicode != nullptr && is_unicode(text));
}

// Whether a name is special, like __class__. A path with such a name would leave the module tree.
bool is_special(std::string_view name) {
  return name.size() > 4 && name.starts_with("__") && name.ends_with("__");
}

// The attributes in which nn.Module keeps its own state and methods.
constexpr std::array<std::string_view, 24> kTables = {  // sorted
    "_backward_hooks",
    "_backward_pre_hooks",
    "_buffers",
    "_call_impl",
    "_compiled_call_impl",
    "_forward_hooks",
    "_forward_hooks_always_called",
    "_forward_hooks_with_kwargs",
    "_forward_pre_hooks",
    "_forward_pre_hooks_with_kwargs",
    "_is_full_backward_hook",
    "_load_state_dict_post_hooks",
    "_load_state_dict_pre_hooks",
    "_modules",
    "_non_persistent_buffers_set",
    "_parameters",
    "_slow_forward",
    "_state_dict_hooks",
    "_state_dict_pre_hooks",
    "_version",
    "_wrapped_call_impl",
    "call_super_init",
    "forward",
    "training"};

template <class Each>
bool all_of_dotted(std::string_view path, Each&& each) {
  for (size_t start = 0;;) {
    const size_t end = std::min(path.find('.', start), path.size());
    if (!each(path.substr(start, end - start))) return false;
    if (end == path.size()) return true;
    start = end + 1;
  }
}

bool is_state_name(std::string_view text) {
  return is_all(text, kInQuotes) && all_of_dotted(text, [](std::string_view part) {
           return !part.empty() && !is_special(part) && !std::ranges::binary_search(kTables, part);
         });
}

// Whether a text may be a path by which Dynamo names a module, such as L['self'].layers[0],
// get_submodule('a') or getattr(L['self'], 'a').
bool is_dynamo_path(std::string_view text) {
  for (size_t quote = text.find('\''); quote != std::string_view::npos;) {
    const size_t end = text.find('\'', quote + 1);
    const std::string_view before = text.substr(0, quote);
    const bool begins = before.ends_with('[') || before.ends_with('(') || before.ends_with(", ");
    const bool is_index = begins && end != std::string_view::npos && end + 1 < text.size() &&
                          is_one_of(text[end + 1], "])");
    if (!is_index) return false;
    quote = text.find('\'', end + 1);
  }
  return std::ranges::all_of(
      text, [](char c) { return !core::is_ascii(c) || c == '\'' || is_part(c, kInQuotes); });
}

bool is_module_path(std::string_view text) {
  return is_dynamo_path(text) &&
         all_of_dotted(text, [](std::string_view part) { return !is_special(part); });
}

// Returns the position of the first comma outside brackets.
size_t find_comma(std::string_view text) {
  int depth = 0;
  for (size_t i = 0; i < text.size(); ++i) {
    if (text[i] == '[' || text[i] == '(') ++depth;
    if (text[i] == ']' || text[i] == ')') --depth;
    if (text[i] == ',' && depth == 0) return i;
  }
  return text.size();
}

// Whether a text may be an nn_module_stack, "key,path,class;...". The decoder counts its parts.
bool is_module_stack(std::string_view text) {
  while (!text.empty()) {
    std::string_view entry = text.substr(0, text.find(';'));
    text.remove_prefix(std::min(entry.size() + 1, text.size()));
    for (int part = 0; part < 2; ++part) {
      const size_t comma = find_comma(entry);
      if (!is_dynamo_path(entry.substr(0, comma))) return false;
      entry.remove_prefix(std::min(comma + 1, entry.size()));
    }
    if (!is_all(entry, kInQuotes)) return false;
  }
  return true;
}

bool is_operator(std::string_view text) {
  if (text.starts_with('#')) return is_all(text, kInQuotes);  // operator of an ExtensionHandler
  return is_all(text, kInOperator);
}

// Whether a text may be a sympy expression. Its quoted parts contain symbol names or digits.
bool is_expression(std::string_view text) {
  bool is_quoted = false;
  char quote = 0;
  for (const char c : text) {
    if (is_quoted) {
      if (c == quote) {
        is_quoted = false;
      } else if (core::is_ascii(c) && !is_part(c, kInNumber)) {
        return false;
      }
    } else if (c == '\'' || c == '"') {
      is_quoted = true;
      quote = c;
    } else if (core::is_ascii(c) && !is_part(c, kInExpression)) {
      return false;
    }
  }
  return !is_quoted && !text.empty();
}

// Whether a text may be a stack trace. The only control characters that it may contain are \n, \t
// and \f, because others could move a terminal's cursor.
bool is_stack_trace(std::string_view text) {
  constexpr size_t kBlock = 64;
  const auto is_bad = [](char c) {
    const auto byte = static_cast<unsigned char>(c);
    return static_cast<unsigned char>((byte < ' ') & (byte != '\n') & (byte != '\t') &
                                      (byte != '\f')) |
           static_cast<unsigned char>(byte == 0x7f);
  };
  const char* at = text.data();
  const char* end = at + text.size();
  for (; end - at >= static_cast<ptrdiff_t>(kBlock); at += kBlock) {
    unsigned bad = 0;
    for (size_t i = 0; i < kBlock; ++i) bad |= static_cast<unsigned>(is_bad(at[i]));
    if (bad != 0) return false;
  }
  return std::none_of(at, end, [&](char c) { return is_bad(c) != 0; });
}

// Whether a text is safe in a comment and in a triple-quoted string.
bool is_line(std::string_view text) {
  return is_all(text, kInLine) && text.find("'''") == std::string_view::npos &&
         text.find("\"\"\"") == std::string_view::npos && !text.ends_with('\\');
}

bool is_json(std::string_view text, char first) {
  return text.starts_with(first) && is_all(text, kInLine);
}

// Whether a text may be the name of an archive record. Readers add the folder to this name.
bool is_record_name(std::string_view text) {
  return archive::problem_of_name(text) == nullptr && text.find('/') == std::string_view::npos;
}

// Whether a text has a character from U+0080 to U+009F. Some begin a terminal command, as ESC does.
bool has_high_control(std::string_view text) {
  for (size_t at = 0; (at = text.find('\xc2', at)) != std::string_view::npos; ++at) {
    if (at + 1 < text.size() && static_cast<unsigned char>(text[at + 1]) < 0xa0) return true;
  }
  return false;
}

bool is_node_metadata(std::string_view key, std::string_view text) {
  // An empty text means that the node does not have this entry. Of the keys that are not tested
  // below, the decoder uses only "from_node", and checks the texts in that JSON when it reads it.
  if (text.empty()) return true;
  if (has_high_control(text)) return false;
  if (key == "stack_trace") return is_stack_trace(text);
  if (key == "nn_module_stack") return is_module_stack(text);
  if (key == "source_fn_stack" || key == "torch_fn") return is_line(text);
  if (key == "custom") return is_json(text, '{');
  return true;
}

}  // namespace

bool passes(Rule rule, std::string_view text, IsUnicodeIdentifier is_unicode) {
  if (rule != Rule::kLiteral && has_high_control(text)) return false;
  switch (rule) {
    case Rule::kIdentifier:
    case Rule::kSymbol:
      return is_identifier(text, is_unicode);
    case Rule::kOptionalIdentifier:
      return text.empty() || is_identifier(text, is_unicode);
    case Rule::kArgumentName:
      return !text.empty() && is_all(text, kInArgument);
    case Rule::kStateName:
      return is_state_name(text);
    case Rule::kModulePath:
      return is_module_path(text);
    case Rule::kTypeName:
    case Rule::kKey:
    case Rule::kConstantInput:
    case Rule::kVersion:
      return is_all(text, kInQuotes);
    case Rule::kOperator:
      return is_operator(text);
    case Rule::kLiteral:
      return true;
    case Rule::kExpression:
      return is_expression(text);
    case Rule::kGuard:
      return is_guard(text);
    case Rule::kTreeSpec:
      return is_json(text, '[');
    case Rule::kModuleStack:
      return is_module_stack(text);
    case Rule::kStackTrace:
      return is_stack_trace(text);
    case Rule::kLine:
      return is_line(text);
    case Rule::kJsonObject:
      return is_json(text, '{');
    case Rule::kWord:
      return !text.empty() && is_all_ascii(text, kInWord);
    case Rule::kRecordName:
      return is_record_name(text);
    case Rule::kNone:
    case Rule::kNodeMetadata:   // tests a key and a text: see is_entry()
    case Rule::kGraphMetadata:  // tests a key and a text: see is_entry()
    case Rule::kCount:
      return false;
  }
  return false;
}

Rule rule_named(std::string_view name) {
  const auto* found = std::ranges::find(kRules, name, &RuleInfo::name);
  return found == kRules.end() ? Rule::kNone : static_cast<Rule>(found - kRules.begin());
}

std::string_view name_of(Rule rule) {
  return kRules[static_cast<size_t>(rule)].name;
}

const char* fault_of(Rule rule) {
  return kRules[static_cast<size_t>(rule)].fault;
}

GateError::GateError(std::string path, Rule rule, std::string_view value)
    : std::runtime_error("a string breaks the rule of its field"),
      path_(std::move(path)),
      value_(value),
      rule_(rule) {}

// ---- documents ----------------------------------------------------------------------------------

namespace {

class Walk {
 public:
  Walk(const Document& document, IsUnicodeIdentifier is_unicode)
      : document_(document), schema_(document.schema()), is_unicode_(is_unicode) {}

  void run() {
    const Value& root = document_.root();
    // The root may be a value that is not a record or union. No rule applies to such a value.
    if (root.kind == ValueKind::kRecord || root.kind == ValueKind::kUnion) {
      open(root, 0, Rule::kNone);
    }
    while (!open_.empty()) {
      if (!goes_deeper(open_.back())) open_.pop_back();
    }
  }

 private:
  // A record, union, list or map that is being visited.
  struct Level {
    std::span<const Value> values;
    size_t next;           // position in `values` of the next value to visit
    const TypeInfo* type;  // type of the record or union; else null
    uint32_t tag;          // union: the field that is set
    uint16_t shape;        // list, map: the shape of its contents
    bool is_map;           // whether `values` has keys and values alternately
    Rule rule;             // gate rule of the enclosing field
  };

  void open(const Value& value, uint16_t shape, Rule rule) {
    const bool has_type = value.kind == ValueKind::kRecord || value.kind == ValueKind::kUnion;
    const TypeInfo* type = has_type ? &schema_.type(value.type) : nullptr;
    const uint32_t tag = value.kind == ValueKind::kUnion ? value.count : 0;
    open_.push_back(
        {document_.children(value), 0, type, tag, shape, value.kind == ValueKind::kMap, rule});
  }

  // Visits the values of `level` until one of them opens another level, and returns true then. The
  // reference `level` is invalid afterwards, because open_ has grown.
  bool goes_deeper(Level& level) {
    while (level.next < level.values.size()) {
      const bool is_open = level.type != nullptr ? visit_field(level)
                           : level.is_map        ? visit_entry(level)
                                                 : visit_item(level);
      if (is_open) return true;
    }
    return false;
  }

  // Each visit_*() visits the next value of a level. It returns whether it opened another level.
  bool visit_field(Level& level) {
    const size_t position = level.next++;
    const FieldInfo& field = level.type->fields[level.tag + position];
    return field.has_text && visit(level.values[position], field.shape, rule_in(level.rule, field));
  }
  bool visit_entry(Level& level) {
    const std::string_view key = document_.text(level.values[level.next]);
    const Value& value = level.values[level.next + 1];
    level.next += 2;
    const bool of_texts = value.kind == ValueKind::kString;
    if (!(of_texts ? is_entry(level.rule, key, document_.text(value)) : test(level.rule, key))) {
      fail(level.rule, of_texts ? document_.text(value) : key);
    }
    return !of_texts && schema_.has_text(level.shape) && visit(value, level.shape, Rule::kNone);
  }
  bool visit_item(Level& level) {
    return visit(level.values[level.next++], level.shape, level.rule);
  }

  // Returns the rule for a field. outer: the rule of the value that contains the field. The rule
  // kConstantInput in `outer` replaces a field's rule kLiteral or kNone.
  static Rule rule_in(Rule outer, const FieldInfo& field) {
    const bool is_narrower = outer == Rule::kConstantInput;
    if (is_narrower && (field.rule == Rule::kLiteral || field.rule == Rule::kNone)) return outer;
    return field.rule;
  }

  // Whether JSON represents values of type `kind` as a number or as null, true or false.
  static bool is_plain(ValueKind kind) {
    return kind == ValueKind::kNull || kind == ValueKind::kBool || kind == ValueKind::kInt ||
           kind == ValueKind::kBigInt || kind == ValueKind::kReal;
  }

  // Tests a string, or opens a level for a value with strings. Returns whether it opened a level.
  bool visit(const Value& value, uint16_t shape, Rule rule) {
    switch (value.kind) {
      case ValueKind::kString:
        if (!test(rule, document_.text(value))) fail(rule, document_.text(value));
        return false;
      case ValueKind::kList:
      case ValueKind::kMap: {
        Shape known = schema_.shape(shape);
        if (known.kind == Kind::kOptional) known = schema_.shape(known.of);
        if (value.kind == ValueKind::kList && !schema_.has_text(known.of)) return false;
        open(value, known.of, rule);
        return true;
      }
      case ValueKind::kUnion:
        if (is_plain(document_.content(value).kind)) return false;  // such as most sizes
        open(value, 0, rule);
        return true;
      case ValueKind::kRecord:
        open(value, 0, rule);
        return true;
      default:
        return false;
    }
  }

  bool test(Rule rule, std::string_view text) { return passes(rule, text, is_unicode_); }

  bool is_entry(Rule rule, std::string_view key, std::string_view text) {
    if (rule == Rule::kGraphMetadata) return key != "custom" || text.empty() || is_json(text, '{');
    if (rule != Rule::kNodeMetadata) return is_line(key) && is_line(text);
    if (key != "nn_module_stack") return is_node_metadata(key, text);
    if (!is_module_stack(text.substr(known_entries(text)))) return false;
    last_stack_ = text;
    return true;
  }

  // Returns the length of the leading entries that `stack` shares with last_stack_.
  size_t known_entries(std::string_view stack) const {
    if (stack == last_stack_) return stack.size();
    const auto differs = std::ranges::mismatch(stack, last_stack_).in1 - stack.begin();
    const size_t separator = stack.substr(0, static_cast<size_t>(differs)).rfind(';');
    return separator == std::string_view::npos ? 0 : separator + 1;
  }

  [[noreturn]] void fail(Rule rule, std::string_view text) const {
    std::string path;
    for (const Level& level : open_) {
      const size_t done = level.next - (level.is_map ? 2 : 1);
      if (level.type != nullptr) {
        if (!path.empty()) path += '.';
        path += level.type->fields[level.tag + done].name;
      } else if (level.is_map) {
        path += "['" + std::string(document_.text(level.values[done])) + "']";
      } else {
        path += '[' + std::to_string(done) + ']';
      }
    }
    throw GateError(std::move(path), rule, text);
  }

  const Document& document_;
  const Schema& schema_;
  IsUnicodeIdentifier is_unicode_;
  std::vector<Level> open_;      // the values that are being visited, outermost first
  std::string_view last_stack_;  // the last module stack that passed
};

}  // namespace

void pass_gate(const Document& document, IsUnicodeIdentifier is_unicode) {
  Walk(document, is_unicode).run();
}

}  // namespace fxpress::schema
