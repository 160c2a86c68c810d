#include "serde/guard_grammar.h"

#include <algorithm>
#include <array>
#include <charconv>
#include <cstdint>
#include <memory>

namespace fxpress::serde {

namespace {

constexpr int kMaxOpen = 100;          // brackets and operators in front within each other
constexpr size_t kMaxDigits = 40;      // of an integer: those of shapes have 19
constexpr int kMaxExponent = 64;       // of a power, and bits of a shift
constexpr size_t kMaxText = 1u << 16;  // characters

constexpr std::array<std::string_view, 9> kFunctions = {"IsNonOverlappingAndDenseIndicator",
                                                        "abs",
                                                        "bool",
                                                        "cast_symbool_to_symint_guardless",
                                                        "float",
                                                        "int",
                                                        "max",
                                                        "min",
                                                        "round"};
constexpr std::array<std::string_view, 24> kOfMath = {
    "acos",  "acosh", "asin", "asinh", "atan", "atanh", "ceil",  "cos",
    "cosh",  "exp",   "fabs", "floor", "fmod", "isinf", "isnan", "log",
    "log1p", "log2",  "sin",  "sinh",  "sqrt", "tan",   "tanh",  "trunc"};
constexpr std::array<std::string_view, 4> kConstantsOfMath = {"e", "inf", "nan", "pi"};
constexpr std::array<std::string_view, 21> kOfTorch = {
    "_sym_acos", "_sym_asin", "_sym_atan", "_sym_ceil", "_sym_cos", "_sym_cosh", "_sym_floor",
    "_sym_log2", "_sym_sin",  "_sym_sinh", "_sym_sqrt", "_sym_tan", "_sym_tanh", "sym_float",
    "sym_int",   "sym_ite",   "sym_max",   "sym_min",   "sym_not",  "sym_sqrt",  "sym_sum"};
constexpr std::array<std::string_view, 6> kMethods = {"dim",  "item",           "numel",
                                                      "size", "storage_offset", "stride"};
constexpr std::array<std::string_view, 5> kConstants = {"False", "None", "True", "inf", "nan"};

struct NoGuard {};

bool is_digit(char c) {
  return c >= '0' && c <= '9';
}
bool is_name_start(char c) {
  return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || c == '_';
}
bool is_name(char c) {
  return is_name_start(c) || is_digit(c);
}
template <size_t n>
bool contains(const std::array<std::string_view, n>& texts, std::string_view text) {
  return std::ranges::find(texts, text) != texts.end();
}

// What is known of an expression.
struct Known {
  bool has_power = false;  // its numbers may have many digits
  bool is_text = false;    // it may be a text, which is for comparisons only
};

// One guard. Throws NoGuard. Every call reads on, or throws; open_ bounds the depth of the stack.
class Parser {
 public:
  explicit Parser(std::string_view text) : rest_(text) {}

  void whole() {
    if (rest_.starts_with(' ')) throw NoGuard();  // Python minds indents
    condition();
    if (peek() != '\0' || !rest_.empty()) throw NoGuard();
  }

 private:
  class Open {
   public:
    explicit Open(Parser& parser) : parser_(parser) {
      if (++parser_.open_ > kMaxOpen) throw NoGuard();
    }
    ~Open() { --parser_.open_; }
    Open(const Open&) = delete;
    Open& operator=(const Open&) = delete;

   private:
    Parser& parser_;
  };

  Known condition() {
    const Open open(*this);
    Known known = alternatives();
    if (take_word("if")) {
      merge(known, alternatives());
      if (!take_word("else")) throw NoGuard();
      merge(known, condition());
    }
    return known;
  }

  static void merge(Known& known, Known other) {
    known.has_power |= other.has_power;
    known.is_text |= other.is_text;
  }
  // Arithmetic with texts repeats and formats them.
  static Known of_number(Known known) {
    if (known.is_text) throw NoGuard();
    return known;
  }

  Known alternatives() {
    Known known = negation();
    while (take_word("or") || take_word("and")) merge(known, negation());
    return known;
  }

  Known negation() {
    bool is_negated = false;
    while (take_word("not")) is_negated = true;
    const Known known = comparison();
    return is_negated ? Known() : known;
  }

  Known comparison() {
    const Known known = sum();
    if (!take_comparison()) return known;
    do {
      sum();
    } while (take_comparison());
    return {};  // a truth value
  }

  bool take_comparison() {
    const char first = peek();
    const bool is_equal = rest_.size() > 1 && rest_[1] == '=';
    if (first == '=' || first == '!') {
      if (!is_equal) throw NoGuard();
      skip(2);
      return true;
    }
    if (first != '<' && first != '>') return false;
    if (rest_.size() > 1 && rest_[1] == first) return false;  // a shift
    skip(is_equal ? 2 : 1);
    return true;
  }

  // Operands with operators between; which of them binds more tightly matters for powers alone.
  Known sum() {
    Known last = factor();  // the operand before the operator
    Known known = last;
    while (const size_t size = operator_size()) {
      const bool is_shift = rest_[0] == '<' || rest_[0] == '>';
      const bool is_power = size == 2 && rest_[0] == '*';
      of_number(known);
      skip(size);
      if (rest_.starts_with('=')) throw NoGuard();
      if (is_power && last.has_power) throw NoGuard();
      if (is_power || is_shift) {
        small();
        last.has_power = true;
      } else {
        last = of_number(factor());
      }
      merge(known, last);
    }
    return known;
  }

  void begin_small() {
    ++in_small_;
    small_total_ = 0;
  }

  // The characters of the operator of two operands that comes next; 0: there is none.
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

  // An exponent: what is in it cannot make a number that is not small.
  void small() {
    const Open open(*this);
    begin_small();
    of_number(factor());
    --in_small_;
  }

  Known factor() {
    const Open open(*this);
    const char first = peek();
    if (first == '-' || first == '+' || first == '~') {
      skip(1);
      return of_number(factor());
    }
    if (first == '(') {
      skip(1);
      const Known known = in_small_ > 0 ? small_sum() : condition();
      expect(')');
      return known;
    }
    if (is_digit(first)) {
      number();
      return {};
    }
    if (first == '\'') {
      text();
      return {false, true};
    }
    return named();
  }

  Known small_sum() {
    Known known = of_number(factor());
    while (peek() == '+' || rest_.starts_with('-') || rest_.starts_with('/')) {
      skip(rest_.starts_with("//") ? 2 : 1);
      merge(known, of_number(factor()));
    }
    return known;
  }

  Known named() {
    const std::string_view word = name();
    if (contains(kConstants, word)) return {};
    if (word == "L") {
      source();
      return {};
    }
    // Functions make integers of floats, but for one, and a power of floats is a float.
    if (in_small_ > 0 && word != "math" && word != "torch") throw NoGuard();
    if (word == "math") {
      expect('.');
      const std::string_view member = name();
      if (contains(kConstantsOfMath, member)) return {};
      if (in_small_ > 0 || !contains(kOfMath, member)) throw NoGuard();
    } else if (word == "torch") {
      expect('.');
      const std::string_view member = name();
      if (in_small_ > 0 ? member != "sym_float" : !contains(kOfTorch, member)) throw NoGuard();
    } else if (!contains(kFunctions, word)) {
      throw NoGuard();
    }
    return arguments(word == "round" ? 1 : SIZE_MAX);
  }

  // Those from `small` on are numbers of digits, which have to be small.
  Known arguments(size_t small) {
    expect('(');
    Known known;
    size_t count = 0;
    do {
      if (count == small) begin_small();
      merge(known, of_number(in_small_ > 0 ? small_sum() : condition()));
      ++count;
    } while (take(','));
    if (count > small) --in_small_;
    expect(')');
    return known;
  }

  // L['name'] and what comes behind it.
  void source() {
    expect('[');
    text();
    expect(']');
    for (;;) {
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
          if (member.starts_with("__")) throw NoGuard();
          continue;
        }
        if (!contains(kMethods, member)) throw NoGuard();
        expect('(');
        expect(')');
      } else {
        return;
      }
    }
  }

  void number() {
    size_t end = digits(0);
    const size_t whole = end;
    bool is_integer = true;
    if (end < rest_.size() && rest_[end] == '.') {
      is_integer = false;
      end = digits(end + 1);
    }
    if (end < rest_.size() && (rest_[end] == 'e' || rest_[end] == 'E')) {
      is_integer = false;
      ++end;
      if (end < rest_.size() && (rest_[end] == '+' || rest_[end] == '-')) ++end;
      const size_t from = end;
      end = digits(end);
      if (end == from) throw NoGuard();
    }
    if (end == 0 || whole > kMaxDigits || end > 2 * kMaxDigits) throw NoGuard();
    if (end < rest_.size() && (is_name(rest_[end]) || rest_[end] == '.')) throw NoGuard();
    if (is_integer && whole > 1 && rest_.front() == '0') throw NoGuard();
    if (is_integer && in_small_ > 0) {
      int value = kMaxExponent + 1;
      const std::string_view number = rest_.substr(0, end);
      std::from_chars(std::to_address(number.begin()), std::to_address(number.end()), value);
      small_total_ += std::min(value, kMaxExponent + 1);
      if (small_total_ > kMaxExponent) throw NoGuard();
    }
    skip(end);
  }

  size_t digits(size_t at) const {
    while (at < rest_.size() && is_digit(rest_[at])) ++at;
    return at;
  }

  // As repr() writes it. A quote in it, be it escaped, would end the text of a message.
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

  // Where the last character of an escape is.
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
    const bool is_printable_ascii = code >= ' ' && code < 0x7f;  // repr() writes it as it is
    if (!is_read || is_printable_ascii || code > 0x10ffff) throw NoGuard();
    return at + size;
  }

  std::string_view name() {
    skip_spaces();
    if (rest_.empty() || !is_name_start(rest_.front())) throw NoGuard();
    size_t end = 0;
    while (end < rest_.size() && is_name(rest_[end])) ++end;
    const std::string_view result = rest_.substr(0, end);
    skip(end);
    return result;
  }

  bool take_word(std::string_view word) {
    skip_spaces();
    if (!rest_.starts_with(word)) return false;
    if (rest_.size() > word.size() && is_name(rest_[word.size()])) return false;
    skip(word.size());
    return true;
  }

  // The character that comes next; 0 at the end.
  char peek() {
    skip_spaces();
    return rest_.empty() ? '\0' : rest_.front();
  }
  bool take(char c) {
    if (peek() != c) return false;
    skip(1);
    return true;
  }
  void expect(char c) {
    if (!take(c)) throw NoGuard();
  }
  void skip(size_t count) { rest_.remove_prefix(count); }
  void skip_spaces() { skip(std::min(rest_.find_first_not_of(' '), rest_.size())); }

  std::string_view rest_;  // of the text
  int open_ = 0;           // see kMaxOpen
  int in_small_ = 0;       // exponents that are open
  int small_total_ = 0;    // of the integers in the exponent that was opened last
};

}  // namespace

bool is_guard(std::string_view text) {
  if (text.size() > kMaxText) return false;
  try {
    Parser(text).whole();
    return true;
  } catch (const NoGuard&) {
    return false;
  }
}

}  // namespace fxpress::serde
