#include <algorithm>
#include <array>
#include <charconv>
#include <cstdint>
#include <memory>
#include <span>
#include <system_error>

#include "core/characters.h"
#include "core/scoped_value.h"
#include "schema/gate.h"

namespace fxpress::schema {

namespace {

using core::is_digit;
using core::is_name_part;

constexpr int kMaxOpen = 100;          // nested brackets and prefix operators
constexpr int kMaxTreeDepth = 250;     // depth of Python's AST, which torch prints by ast.unparse
constexpr size_t kMaxDigits = 40;      // digits of an integer; sizes have at most 19
constexpr int kMaxExponent = 64;       // sum of the integers in an exponent; bits of a shift
constexpr int kUnknown = 16;           // an exponent's term that is not an integer counts as this
constexpr int kMaxPowers = 16;         // powers in a guard; torch writes n*n for squares
constexpr size_t kMaxBases = 2000;     // total characters of the bases of powers
constexpr size_t kMaxText = 1u << 16;  // characters of a guard

constexpr std::array<std::string_view, 8> kFunctions = {"IsNonOverlappingAndDenseIndicator",
                                                        "abs",
                                                        "bool",
                                                        "cast_symbool_to_symint_guardless",
                                                        "float",
                                                        "int",
                                                        "max",
                                                        "min"};
// Functions that return floats. A power with a float exponent is a float, so its size is bounded.
constexpr std::array<std::string_view, 19> kFloatsOfMath = {
    "acos", "acosh", "asin",  "asinh", "atan", "atanh", "cos",  "cosh", "exp", "fabs",
    "fmod", "log",   "log1p", "log2",  "sin",  "sinh",  "sqrt", "tan",  "tanh"};
constexpr std::array<std::string_view, 3> kIntegersOfMath = {"ceil", "floor", "trunc"};
constexpr std::array<std::string_view, 2> kTestsOfMath = {"isinf", "isnan"};
constexpr std::array<std::string_view, 4> kConstantsOfMath = {"e", "inf", "nan", "pi"};
constexpr std::array<std::string_view, 13> kFloatsOfTorch = {
    "_sym_acos", "_sym_asin", "_sym_atan", "_sym_cos",  "_sym_cosh", "_sym_log2", "_sym_sin",
    "_sym_sinh", "_sym_sqrt", "_sym_tan",  "_sym_tanh", "sym_float", "sym_sqrt"};
constexpr std::array<std::string_view, 8> kOthersOfTorch = {
    "_sym_ceil", "_sym_floor", "sym_int", "sym_ite", "sym_max", "sym_min", "sym_not", "sym_sum"};
constexpr std::array<std::string_view, 6> kMethods = {"dim",  "item",           "numel",
                                                      "size", "storage_offset", "stride"};
// Methods that exponents may call; not numel(), because a product of sizes may be large.
constexpr std::array<std::string_view, 1> kSizes = {"size"};
constexpr std::array<std::string_view, 5> kConstants = {"False", "None", "True", "inf", "nan"};

// Thrown for a text that is not a guard.
struct NoGuard {};

bool contains(std::span<const std::string_view> texts, std::string_view text) {
  return std::ranges::find(texts, text) != texts.end();
}

// The facts that the parser knows about an expression.
struct Known {
  bool has_power = false;  // the expression has a power, whose result may have many digits
  bool is_text = false;    // the result may be a text, which only comparisons accept
  int depth = 1;           // see kMaxTreeDepth
};

// Parses one guard. Each function consumes text or throws NoGuard. open_ limits the recursion.
class GuardParser : core::Cursor<NoGuard> {
 public:
  explicit GuardParser(std::string_view text) : Cursor(text) {}

  void whole() {
    if (rest_.starts_with(' ')) throw NoGuard();  // Python rejects an indented line
    condition();
    if (peek() != '\0' || !rest_.empty()) throw NoGuard();
  }

 private:
  // Counts a nested condition, factor or exponent while the returned object exists. Throws NoGuard
  // if more than kMaxOpen are nested.
  core::ScopedValue<int> open() {
    if (open_ == kMaxOpen) throw NoGuard();
    return {open_, open_ + 1};
  }

  Known condition() {
    const auto opened = open();
    Known known = alternatives();
    if (take_word("if")) {
      merge(known, alternatives());
      if (!take_word("else")) throw NoGuard();
      merge(known, condition());
      deepen(known);
    }
    return known;
  }

  static void merge(Known& known, Known other) {
    known.has_power |= other.has_power;
    known.is_text |= other.is_text;
    known.depth = std::max(known.depth, other.depth);
  }
  static void deepen(Known& known, int levels = 1) {
    known.depth += levels;
    if (known.depth > kMaxTreeDepth) throw NoGuard();
  }
  static Known deeper(Known known) {
    deepen(known);
    return known;
  }
  // Throws NoGuard if an operand may be a text, because `*` would repeat and `%` would format it.
  static Known of_number(Known known) {
    if (known.is_text) throw NoGuard();
    return known;
  }

  Known alternatives() {
    Known known = negation();
    bool is_alone = true;
    while (take_word("or") || take_word("and")) {
      merge(known, negation());
      is_alone = false;
    }
    if (!is_alone) deepen(known, 2);  // one level for "and", one for "or"
    return known;
  }

  Known negation() {
    int negations = 0;
    while (take_word("not")) ++negations;
    Known known = comparison();
    if (negations == 0) return known;
    deepen(known, negations);
    return truth(known);
  }

  Known comparison() {
    Known known = sum();
    if (!take_comparison()) return known;
    do {
      merge(known, sum());
    } while (take_comparison());
    deepen(known);
    return truth(known);
  }

  // Returns the facts about a bool that is computed from the expression `made_of`.
  static Known truth(Known made_of) { return {false, false, made_of.depth}; }

  bool take_comparison() {
    const char first = peek();
    const bool is_equal = rest_.size() > 1 && rest_[1] == '=';
    if (first == '=' || first == '!') {
      if (!is_equal) throw NoGuard();
      skip(2);
      return true;
    }
    if (first != '<' && first != '>') return false;
    if (rest_.size() > 1 && rest_[1] == first) return false;  // `<<` or `>>`
    skip(is_equal ? 2 : 1);
    return true;
  }

  // Parses operands with operators between them. Precedence matters only for powers and shifts.
  Known sum() {
    size_t start = rest_.size();
    Known last = factor();  // the operand before the operator
    Known known = last;
    while (const size_t size = operator_size()) {
      const bool is_shift = rest_[0] == '<' || rest_[0] == '>';
      const bool is_power = size == 2 && rest_[0] == '*';
      of_number(known);
      const size_t base = start - rest_.size();
      skip(size);
      if (rest_.starts_with('=')) throw NoGuard();
      if (is_power && last.has_power) throw NoGuard();
      if (is_power || is_shift) {
        last = power(base);
        if (is_shift && binds_more_tightly()) throw NoGuard();  // 1 << 2 + n shifts by 2 + n
      } else {
        start = rest_.size();
        last = of_number(factor());
      }
      merge(known, last);
      deepen(known);
    }
    return known;
  }

  // Returns the length of the next binary operator, or 0.
  size_t operator_size() {
    const char first = peek();
    const bool is_double = rest_.size() > 1 && rest_[1] == first;
    if (first == '<' || first == '>') return is_double ? 2 : 0;
    if (first == '*' || first == '/') return is_double ? 2 : 1;
    return first == '+' || first == '-' || first == '%' || first == '&' || first == '|' ||
                   first == '^'
               ? 1
               : 0;
  }

  // Whether the next operator binds more tightly than a shift.
  bool binds_more_tightly() {
    return operator_size() > 0 &&
           std::string_view("+-*/%").find(rest_.front()) != std::string_view::npos;
  }

  // Parses the exponent of a power; `base` is the length of the base's text.
  Known power(size_t base) {
    bases_ += base;
    if (++powers_ > kMaxPowers || bases_ > kMaxBases) throw NoGuard();
    int left = kMaxExponent;
    Known known = exponent(left);
    known.has_power = true;
    return known;
  }

  static void spend(int& left, int amount) {
    left -= std::min(amount, kMaxExponent + 1);
    if (left < 0) throw NoGuard();
  }

  // Parses an exponent: a small number, a float, an input or a size. Subtracts each integer in it,
  // and kUnknown for each other term, from `left`. Throws NoGuard if `left` becomes negative.
  Known exponent(int& left) {
    const auto opened = open();
    const char first = peek();
    if (first == '-' || first == '+' || first == '~') {
      skip(1);
      return deeper(exponent(left));
    }
    if (take('(')) {
      const Known known = exponents(left);
      expect(')');
      return known;
    }
    if (!is_digit(first)) return named_exponent(left);
    spend(left, number());
    return {};
  }

  Known exponents(int& left) {
    Known known = term(left);
    while (peek() == '+' || rest_.starts_with('-') || rest_.starts_with('/')) {
      skip(rest_.starts_with("//") ? 2 : 1);
      merge(known, term(left));
      deepen(known);
    }
    return known;
  }

  // Parses a term of an exponent, which may be a product such as 2*L['n'].
  Known term(int& left) {
    if (!is_digit(peek())) return exponent(left);
    spend(left, number());
    return take('*') ? deeper(named_exponent(left)) : Known();
  }

  Known named_exponent(int& left) {
    spend(left, kUnknown);
    const std::string_view word = name();
    if (contains(kConstants, word)) return {};
    if (word == "L") return source(kSizes);
    expect('.');
    const std::string_view member = name();
    if (word == "math") {
      if (contains(kConstantsOfMath, member)) return {};
      if (contains(kIntegersOfMath, member)) return bits();
      if (!contains(kFloatsOfMath, member)) throw NoGuard();
    } else if (word != "torch" || !contains(kFloatsOfTorch, member)) {
      throw NoGuard();
    }
    return arguments();
  }

  // Parses (math.log2(...)) after math.floor. The result is at most the bit length of an integer.
  Known bits() {
    expect('(');
    if (name() != "math") throw NoGuard();
    expect('.');
    if (name() != "log2") throw NoGuard();
    const Known known = deeper(arguments());
    expect(')');
    return known;
  }

  Known factor() {
    const auto opened = open();
    const char first = peek();
    if (first == '-' || first == '+' || first == '~') {
      skip(1);
      return deeper(of_number(factor()));
    }
    if (first == '(') {
      skip(1);
      const Known known = condition();
      expect(')');
      return known;
    }
    if (is_digit(first)) {
      number();
      return {};
    }
    if (first == '\'') {
      text();
      return {false, true, 1};
    }
    return named();
  }

  Known named() {
    const std::string_view word = name();
    if (contains(kConstants, word)) return {};
    if (word == "L") return source(kMethods);
    if (word == "round") return rounded();
    if (word == "math") {
      expect('.');
      const std::string_view member = name();
      if (contains(kConstantsOfMath, member)) return {};
      if (!contains(kFloatsOfMath, member) && !contains(kIntegersOfMath, member) &&
          !contains(kTestsOfMath, member)) {
        throw NoGuard();
      }
    } else if (word == "torch") {
      expect('.');
      const std::string_view member = name();
      if (!contains(kFloatsOfTorch, member) && !contains(kOthersOfTorch, member)) throw NoGuard();
    } else if (!contains(kFunctions, word)) {
      throw NoGuard();
    }
    return arguments();
  }

  Known arguments() {
    expect('(');
    Known known;
    do {
      merge(known, of_number(condition()));
    } while (take(','));
    expect(')');
    return deeper(known);
  }

  // Parses (number, digits), the arguments of round(). `digits` must be small, because Python
  // computes 10**digits.
  Known rounded() {
    expect('(');
    const Known known = of_number(condition());
    if (take(',')) {
      take('-');
      if (number() > kMaxExponent) throw NoGuard();
    }
    expect(')');
    return deeper(known);
  }

  // Parses L['name'] and, after it, indices, attributes and calls of methods in `methods`.
  Known source(std::span<const std::string_view> methods) {
    expect('[');
    text();
    expect(']');
    Known known;
    for (;; deepen(known)) {
      if (take('[')) {
        if (peek() == '\'') {
          text();
        } else {
          take('-');
          number();
        }
        expect(']');
      } else if (take('.')) {
        const std::string_view member = name();
        if (peek() != '(') {
          if (member.starts_with("__") || core::is_keyword(member)) throw NoGuard();
          continue;
        }
        if (!contains(methods, member)) throw NoGuard();
        expect('(');
        expect(')');
        deepen(known);
      } else {
        return known;
      }
    }
  }

  // Parses a number. Returns min(value, kMaxExponent + 1) for an integer, and 0 for a float.
  int number() {
    size_t end = end_of_digits(0);
    const size_t whole = end;
    bool is_integer = true;
    if (end < rest_.size() && rest_[end] == '.') {
      is_integer = false;
      end = end_of_digits(end + 1);
    }
    if (end < rest_.size() && (rest_[end] == 'e' || rest_[end] == 'E')) {
      is_integer = false;
      ++end;
      if (end < rest_.size() && (rest_[end] == '+' || rest_[end] == '-')) ++end;
      const size_t from = end;
      end = end_of_digits(end);
      if (end == from) throw NoGuard();
    }
    if (whole == 0 || whole > kMaxDigits || end > 2 * kMaxDigits) throw NoGuard();
    if (end < rest_.size() && (is_name_part(rest_[end]) || rest_[end] == '.')) throw NoGuard();
    if (is_integer && whole > 1 && rest_.front() == '0') throw NoGuard();
    const std::string_view read = take_characters(end);
    if (!is_integer) return 0;
    int value = 0;
    const auto [_, error] =
        std::from_chars(std::to_address(read.begin()), std::to_address(read.end()), value);
    return error == std::errc() ? std::min(value, kMaxExponent + 1) : kMaxExponent + 1;
  }

  // Parses a string as repr() writes it. Rejects double quotes, even escaped ones, because torch
  // puts the guard into a message in double quotes.
  void text() {
    if (peek() != '\'') throw NoGuard();
    for (size_t at = 1;; ++at) {
      if (at >= rest_.size()) throw NoGuard();
      const auto c = static_cast<unsigned char>(rest_[at]);
      if (c == '\'') {
        skip(at + 1);
        return;
      }
      if (c == '"' || c < ' ' || c == 0x7f) throw NoGuard();
      if (c == '\\') at = escape(at + 1);
    }
  }

  // Parses an escape sequence; `at` is the position after its backslash. Returns its last position.
  size_t escape(size_t at) const {
    if (at >= rest_.size()) throw NoGuard();
    const char kind = rest_[at];
    if (kind == '\\' || kind == 'n' || kind == 'r' || kind == 't') return at;
    const size_t size = kind == 'x' ? 2 : kind == 'u' ? 4 : kind == 'U' ? 8 : 0;
    const size_t from = at + 1;
    if (size == 0 || rest_.size() - from < size) throw NoGuard();
    uint32_t code = 0;
    const char* start = rest_.data() + from;
    const bool is_read = std::from_chars(start, start + size, code, 16).ptr == start + size;
    const bool is_printable_ascii = code >= ' ' && code < 0x7f;  // repr() does not escape it
    if (!is_read || is_printable_ascii || code > 0x10ffff) throw NoGuard();
    return at + size;
  }

  int open_ = 0;      // see kMaxOpen
  int powers_ = 0;    // number of powers so far
  size_t bases_ = 0;  // see kMaxBases
};

}  // namespace

bool is_guard(std::string_view text) {
  if (text.size() > kMaxText) return false;
  try {
    GuardParser(text).whole();
    return true;
  } catch (const NoGuard&) {
    return false;
  }
}

}  // namespace fxpress::schema
