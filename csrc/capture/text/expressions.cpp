#include "capture/text/expressions.h"

#include <algorithm>
#include <array>
#include <utility>

#include "core/characters.h"

namespace fxpress::capture {

using core::is_constant_word;
using core::is_digit;
using core::is_keyword;
using core::is_name_part;
using core::is_name_start;

namespace {

// The precedences of operators, with the same numbers as in ast.unparse.
enum Precedence : int {
  kTest = 4,
  kOr = 5,
  kAnd = 6,
  kNot = 7,
  kCompares = 8,
  kBitOr = 9,
  kFactor = 15,
  kPower = 16,
  kAtom = 18
};

struct BinaryOperator {
  std::string_view text;
  int precedence;
};
// The parser tries the operators in this order, so "//" must come before its prefix "/".
constexpr std::array kBinary = {
    BinaryOperator{"<<", 12},    BinaryOperator{">>", 12}, BinaryOperator{"//", 14},
    BinaryOperator{"|", kBitOr}, BinaryOperator{"^", 10},  BinaryOperator{"&", 11},
    BinaryOperator{"+", 13},     BinaryOperator{"-", 13},  BinaryOperator{"*", 14},
    BinaryOperator{"/", 14},     BinaryOperator{"%", 14},  BinaryOperator{"@", 14},
};
constexpr std::array<std::string_view, 6> kCompare = {"==", "!=", "<=", ">=", "<", ">"};

constexpr size_t kMaxDigits = 600;  // Python's int() accepts at least 640 digits

// Thrown for a text that the parser does not support.
struct NotCovered {};

int precedence_of(std::string_view binary) {
  if (binary == "**") return kPower;
  const auto* found = std::find_if(kBinary.begin(), kBinary.end(),
                                   [&](const BinaryOperator& each) { return each.text == binary; });
  return found->precedence;
}

// Calls each(text) for each of the texts that join_text() has joined by commas.
template <class Each>
void for_each_text(std::string_view joined, Each&& each) {
  while (!joined.empty()) {
    const size_t end = std::min(joined.find(','), joined.size());
    each(joined.substr(0, end));
    joined.remove_prefix(std::min(end + 1, joined.size()));
  }
}

void join_text(std::string& joined, std::string_view text) {
  if (!joined.empty()) joined += ',';
  joined += text;
}

// Parses one expression. Throws NotCovered.
class ExpressionParser : core::Cursor<NotCovered> {
 public:
  ExpressionParser(Expressions& expressions, std::string_view text, int max_open)
      : Cursor(text), expressions_(expressions), max_open_(max_open) {}

  ExpressionId parse() {
    if (rest_.empty() || rest_.front() == ' ') throw NotCovered();  // Python: IndentationError
    const ExpressionId result = test();
    if (peek() != '\0' || !rest_.empty()) throw NotCovered();
    // A string as the entire text would be a docstring, which ast.unparse prints differently.
    const Expressions::Expression& made = expressions_[result];
    if (made.kind == ExpressionKind::kConstant && !is_name_part(made.text.front()))
      throw NotCovered();
    return result;
  }

 private:
  using Parts = std::vector<ExpressionId>;

  ExpressionId test() {
    open();
    const ExpressionId result = boolean("or");
    --open_;
    return result;
  }

  ExpressionId boolean(std::string_view word) {
    const auto next = [&] { return word == "or" ? boolean("and") : negation(); };
    const ExpressionId first = next();
    if (!take_word(word)) return first;
    Parts parts = {first};
    do {
      parts.push_back(next());
    } while (take_word(word));
    return make(ExpressionKind::kBoolean, word, parts);
  }

  ExpressionId negation() {
    size_t count = 0;
    while (take_word("not")) ++count;
    ExpressionId result = comparison();
    for (; count > 0; --count) result = make(ExpressionKind::kUnary, "not", {&result, 1});
    return result;
  }

  ExpressionId comparison() {
    const ExpressionId first = binary(kBitOr);
    std::string_view found = comparison_operator();
    if (found.empty()) return first;
    Parts parts = {first};
    std::string operators;
    for (; !found.empty(); found = comparison_operator()) {
      join_text(operators, found);
      parts.push_back(binary(kBitOr));
    }
    return make(ExpressionKind::kCompare, operators, parts);
  }

  std::string_view comparison_operator() {
    if (is_at_end()) return {};
    if (take_word("is")) return take_word("not") ? "is not" : "is";
    if (take_word("in")) return "in";
    if (take_word("not")) {
      if (!take_word("in")) throw NotCovered();
      return "not in";
    }
    skip_spaces();
    for (const std::string_view text : kCompare) {
      if (!rest_.starts_with(text) || rest_.starts_with("<<") || rest_.starts_with(">>")) continue;
      skip(text.size());
      return text;
    }
    return {};
  }

  // Parses operands joined by binary operators whose precedence is at least `precedence`.
  ExpressionId binary(int precedence) {
    ExpressionId left = factor();
    for (;;) {
      if (is_at_end()) return left;
      const auto* found =
          std::find_if(kBinary.begin(), kBinary.end(),
                       [&](const BinaryOperator& each) { return rest_.starts_with(each.text); });
      if (found == kBinary.end() || found->precedence < precedence) return left;
      skip(found->text.size());
      if (rest_.starts_with('=')) throw NotCovered();
      const ExpressionId sides[] = {left, binary(found->precedence + 1)};
      left = make(ExpressionKind::kBinary, found->text, sides);
    }
  }

  ExpressionId factor() {
    if (const char next = peek(); next == '-' || next == '+' || next == '~') {
      const std::string_view sign = take_characters(1);
      open();
      const ExpressionId operand = factor();
      --open_;
      return make(ExpressionKind::kUnary, sign, {&operand, 1});
    }
    const ExpressionId base = primary();
    skip_spaces();
    if (!rest_.starts_with("**")) return base;
    skip(2);
    if (rest_.starts_with('=')) throw NotCovered();
    open();
    const ExpressionId power = factor();
    --open_;
    const ExpressionId sides[] = {base, power};
    return make(ExpressionKind::kBinary, "**", sides);
  }

  ExpressionId primary() {
    ExpressionId result = atom();
    for (;;) {
      if (take('.')) {
        const bool of_number = expressions_[result].kind == ExpressionKind::kConstant &&
                               expressions_[result].text.find_first_of("'\"") != 0;
        const std::string_view attribute = name();
        if (of_number || is_keyword(attribute)) throw NotCovered();
        result = make(ExpressionKind::kAttribute, attribute, {&result, 1});
      } else if (take('(')) {
        result = call(result);
      } else if (take('[')) {
        result = subscript(result);
      } else {
        return result;
      }
    }
  }

  ExpressionId call(ExpressionId function) {
    Parts parts = {function};
    std::string keywords;
    while (!take(')')) {
      if (parts.size() > 1) expect(',');
      skip_spaces();
      if (const std::string_view keyword = keyword_of_argument(); !keyword.empty()) {
        join_text(keywords, keyword);
      } else if (!keywords.empty()) {
        throw NotCovered();
      }
      parts.push_back(test());
    }
    return make(ExpressionKind::kCall, keywords, parts);
  }

  // Parses `name =` and returns the name. Otherwise returns an empty text.
  std::string_view keyword_of_argument() {
    size_t end = 0;
    while (end < rest_.size() && is_name_part(rest_[end])) ++end;
    const std::string_view name = rest_.substr(0, end);
    const size_t sign = rest_.find_first_not_of(' ', end);
    if (name.empty() || !is_name_start(name.front()) || sign == std::string_view::npos ||
        rest_[sign] != '=' || rest_.substr(sign).starts_with("==")) {
      return {};
    }
    if (is_keyword(name)) throw NotCovered();
    skip(sign + 1);
    return name;
  }

  ExpressionId subscript(ExpressionId object) {
    Parts items = {test()};
    bool is_tuple = false;
    while (!take(']')) {
      expect(',');
      is_tuple = true;
      if (peek() != ']') items.push_back(test());
    }
    const ExpressionId parts[] = {object,
                                  is_tuple ? make(ExpressionKind::kTuple, {}, items) : items[0]};
    return make(ExpressionKind::kSubscript, {}, parts);
  }

  ExpressionId atom() {
    const char first = peek();
    if (is_name_start(first)) {
      const std::string_view word = name();
      const bool is_constant = is_constant_word(word);
      if (!is_constant && is_keyword(word)) throw NotCovered();
      if (!rest_.empty() && (rest_[0] == '\'' || rest_[0] == '"')) throw NotCovered();
      return make(is_constant ? ExpressionKind::kConstant : ExpressionKind::kName, word, {});
    }
    if (is_digit(first)) return number();
    if (first == '\'' || first == '"') return string(first);
    if (take('(')) return parenthesized();
    if (take('[')) return make(ExpressionKind::kList, {}, items(']'));
    throw NotCovered();
  }

  ExpressionId parenthesized() {
    if (take(')')) return make(ExpressionKind::kTuple, {}, {});
    const ExpressionId first = test();
    if (take(')')) return first;
    expect(',');
    Parts parts = {first};
    const Parts others = items(')');
    parts.insert(parts.end(), others.begin(), others.end());
    return make(ExpressionKind::kTuple, {}, parts);
  }

  Parts items(char end) {
    Parts parts;
    while (!take(end)) {
      parts.push_back(test());
      if (peek() != end) expect(',');
    }
    return parts;
  }

  // Parses a number that repr() prints unchanged: an integer, or a decimal fraction of few digits.
  ExpressionId number() {
    size_t end = end_of_digits(0);
    const std::string_view whole = rest_.substr(0, end);
    if (whole.size() > 1 && whole.front() == '0') throw NotCovered();
    if (end < rest_.size() && rest_[end] == '.') {
      const size_t point = end;
      end = end_of_digits(point + 1);
      const std::string_view fraction = rest_.substr(point + 1, end - point - 1);
      const bool is_short = whole.size() + fraction.size() <= 15;
      const bool is_small = whole == "0" && fraction.starts_with("000");
      const bool is_as_printed = !fraction.empty() && (fraction == "0" || fraction.back() != '0');
      if (!is_short || is_small || !is_as_printed) throw NotCovered();
    }
    if (end < rest_.size() && (is_name_part(rest_[end]) || rest_[end] == '.')) throw NotCovered();
    if (whole.size() > kMaxDigits) throw NotCovered();
    return make(ExpressionKind::kConstant, take_characters(end), {});
  }

  // Parses a string without escapes. The result has the quotes that repr() would use.
  ExpressionId string(char quote) {
    const size_t end = rest_.find(quote, 1);
    if (end == std::string_view::npos) throw NotCovered();
    const std::string_view inside = rest_.substr(1, end - 1);
    const bool is_plain = std::all_of(inside.begin(), inside.end(),
                                      [](char c) { return c >= ' ' && c <= '~' && c != '\\'; });
    skip(end + 1);
    const bool others_follow = peek() == '\'' || peek() == '"';
    if (!is_plain || others_follow) throw NotCovered();
    const std::string quotes = inside.find('\'') != std::string_view::npos ? "\"" : "'";
    return make(ExpressionKind::kConstant, quotes + std::string(inside) + quotes, {});
  }

  // Returns whether no operator follows: the text ends, or a closing bracket or a comma is next.
  bool is_at_end() {
    skip_spaces();
    return rest_.empty() || rest_[0] == ')' || rest_[0] == ']' || rest_[0] == ',';
  }

  void open() {
    if (++open_ > max_open_) throw NotCovered();
  }

  ExpressionId make(ExpressionKind kind, std::string_view text,
                    std::span<const ExpressionId> parts) {
    const ExpressionId result = expressions_.make(kind, text, parts);
    if (expressions_[result].depth > Expressions::kMaxDepth) throw NotCovered();
    return result;
  }

  Expressions& expressions_;
  const int max_open_;
  int open_ = 0;  // number of open brackets, prefix operators and powers
};

class Printer {
 public:
  explicit Printer(const Expressions& expressions) : expressions_(expressions) {}

  std::string run(ExpressionId id) {
    print(id, kTest);
    return std::move(out_);
  }

 private:
  void print(ExpressionId id, int precedence) {
    const Expressions::Expression& e = expressions_[id];
    switch (e.kind) {
      case ExpressionKind::kName:
      case ExpressionKind::kConstant:
        out_ += e.text;
        return;
      case ExpressionKind::kAttribute:
        print(e.in[0], kAtom);
        out_ += '.';
        out_ += e.text;
        return;
      case ExpressionKind::kCall:
        return call(e);
      case ExpressionKind::kSubscript: {
        print(e.in[0], kAtom);
        out_ += '[';
        const Expressions::Expression& index = expressions_[e.in[1]];
        if (index.kind == ExpressionKind::kTuple && !index.in.empty()) {
          list(index.in, true);
        } else {
          print(e.in[1], kTest);
        }
        out_ += ']';
        return;
      }
      case ExpressionKind::kTuple:
        out_ += '(';
        list(e.in, true);
        out_ += ')';
        return;
      case ExpressionKind::kList:
        out_ += '[';
        list(e.in, false);
        out_ += ']';
        return;
      case ExpressionKind::kUnary:
        return unary(e, precedence);
      case ExpressionKind::kBinary:
        return binary(e, precedence);
      case ExpressionKind::kBoolean:
        return boolean(e, precedence);
      case ExpressionKind::kCompare:
        return compare(e, precedence);
    }
  }

  void list(std::span<const ExpressionId> items, bool is_tuple) {
    for (size_t i = 0; i < items.size(); ++i) {
      if (i > 0) out_ += ", ";
      print(items[i], kTest);
    }
    if (is_tuple && items.size() == 1) out_ += ',';
  }

  void call(const Expressions::Expression& e) {
    print(e.in[0], kAtom);
    out_ += '(';
    std::vector<std::string_view> keywords;
    for_each_text(e.text, [&](std::string_view keyword) { keywords.push_back(keyword); });
    const size_t first_keyword = e.in.size() - keywords.size();
    for (size_t i = 1; i < e.in.size(); ++i) {
      if (i > 1) out_ += ", ";
      if (i >= first_keyword) {
        out_ += keywords[i - first_keyword];
        out_ += '=';
      }
      print(e.in[i], kTest);
    }
    out_ += ')';
  }

  void unary(const Expressions::Expression& e, int precedence) {
    const bool is_word = e.text == "not";
    const int own = is_word ? kNot : kFactor;
    open(own, precedence);
    out_ += e.text;
    if (is_word) out_ += ' ';
    print(e.in[0], own);
    close(own, precedence);
  }

  void binary(const Expressions::Expression& e, int precedence) {
    const int own = precedence_of(e.text);
    const bool from_the_right = own == kPower;
    open(own, precedence);
    print(e.in[0], own + (from_the_right ? 1 : 0));
    out_ += ' ';
    out_ += e.text;
    out_ += ' ';
    print(e.in[1], own + (from_the_right ? 0 : 1));
    close(own, precedence);
  }

  // Prints an expression with `and` or `or`. Like ast.unparse, raises `wanted` for each operand.
  void boolean(const Expressions::Expression& e, int precedence) {
    const int own = e.text == "or" ? kOr : kAnd;
    open(own, precedence);
    int wanted = own;
    for (size_t i = 0; i < e.in.size(); ++i) {
      if (i > 0) {
        out_ += ' ';
        out_ += e.text;
        out_ += ' ';
      }
      wanted = std::min<int>(wanted + 1, kAtom);
      print(e.in[i], wanted);
    }
    close(own, precedence);
  }

  void compare(const Expressions::Expression& e, int precedence) {
    open(kCompares, precedence);
    print(e.in[0], kCompares + 1);
    size_t i = 1;
    for_each_text(e.text, [&](std::string_view text) {
      out_ += ' ';
      out_ += text;
      out_ += ' ';
      print(e.in[i++], kCompares + 1);
    });
    close(kCompares, precedence);
  }

  void open(int own, int precedence) {
    if (precedence > own) out_ += '(';
  }
  void close(int own, int precedence) {
    if (precedence > own) out_ += ')';
  }

  const Expressions& expressions_;
  std::string out_;
};

}  // namespace

std::optional<ExpressionId> Expressions::parse(std::string_view text, int max_open) {
  try {
    return ExpressionParser(*this, text, max_open).parse();
  } catch (const NotCovered&) {
    return std::nullopt;
  }
}

std::string Expressions::print(ExpressionId id) const {
  return Printer(*this).run(id);
}

ExpressionId Expressions::make(ExpressionKind kind, std::string_view text,
                               std::span<const ExpressionId> in) {
  key_.clear();
  const auto append = [&](uint32_t number) {
    key_.append(reinterpret_cast<const char*>(&number), sizeof(number));
  };
  key_ += static_cast<char>(kind);
  append(static_cast<uint32_t>(in.size()));
  for (const ExpressionId part : in) append(part);
  key_ += text;
  const auto [at, added] = ids_.try_emplace(key_, static_cast<ExpressionId>(size()));
  if (!added) return at->second;
  int depth = 0;
  for (const ExpressionId part : in) depth = std::max(depth, expressions_[part].depth);
  const std::string_view kept = std::string_view(at->first).substr(at->first.size() - text.size());
  expressions_.push_back({kind, depth + 1, kept, {in.begin(), in.end()}});
  return at->second;
}

}  // namespace fxpress::capture
