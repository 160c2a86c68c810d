#include "fx/source_parts.h"

#include <algorithm>
#include <array>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "core/characters.h"
#include "core/text_hash.h"
#include "fx/symbols.h"
#include "py/calls.h"
#include "py/object_table.h"

namespace fxpress::fx {

namespace {

// Longer texts have no shape, because the cache of shapes would be large and rarely hit.
constexpr size_t kMaxText = size_t{1} << 16;

// kWord[c]: whether a name may contain the character c.
constexpr std::array<bool, 256> kWord = [] {
  std::array<bool, 256> word{};
  for (unsigned c = '0'; c <= '9'; ++c) word[c] = true;
  for (unsigned c = 'a'; c <= 'z'; ++c) word[c] = word[c - 'a' + 'A'] = true;
  word['_'] = true;
  return word;
}();
bool is_word(char c) {
  return kWord[static_cast<unsigned char>(c)];
}

// Returns the name that starts at position `begin` of the text; empty if there is none.
std::string_view word_at(std::string_view text, size_t begin) {
  size_t end = begin;
  while (end < text.size() && is_word(text[end])) ++end;
  return text.substr(begin, end - begin);
}

// Numbers the local names in a text, in order of first appearance.
class LocalNames {
 public:
  // Returns the number of a name. Assigns the next number to a new name.
  size_t number(std::string_view name) {
    const auto [it, added] = numbers_.emplace(name, order_.size());
    if (added) {
      order_.push_back(name);
      seen_[trait(name)] = true;
    }
    return it->second;
  }
  bool contains(std::string_view name) const {
    return seen_[trait(name)] && numbers_.contains(name);
  }
  std::vector<std::string_view> take() { return std::move(order_); }

 private:
  // Returns a cheap hash. Most words are not local names, so contains() rarely needs a full hash.
  static size_t trait(std::string_view name) {
    const auto byte = [](char c) { return static_cast<unsigned char>(c); };
    return (byte(name.front()) * 37u + byte(name.back()) * 5u + name.size()) % 1024u;
  }

  core::TextViewMap<size_t> numbers_;    // from names to numbers
  std::vector<std::string_view> order_;  // from numbers to names
  std::array<bool, 1024> seen_{};        // [trait]: whether a local name has this trait
};

// Returns whether a word without a mark equals a local name. A placeholder may be named like a
// global (`torch`, `max`), and the repr of a symbolic size may be the name of a node. Such texts
// have no shape, because a text of the same shape may have another local name there.
bool mentions_local(std::string_view marked, const LocalNames& names) {
  for (size_t at = 0; at < marked.size();) {
    if (marked[at] == kLocalMark) {
      at += 1 + word_at(marked, at + 1).size();
      continue;
    }
    const std::string_view word = word_at(marked, at);
    if (word.empty()) {
      ++at;
      continue;
    }
    const size_t end = at + word.size();
    const bool attribute = at > 0 && marked[at - 1] == '.';
    const bool keyword = marked.substr(end, 3) == " = ";  // a variable would have a mark
    if (!attribute && !keyword && names.contains(word)) return true;
    at = end;
  }
  return false;
}

}  // namespace

std::string without_marks(std::string_view marked) {
  std::string text;
  text.reserve(marked.size());
  for (size_t at = 0;;) {
    const size_t mark = std::min(marked.find(kLocalMark, at), marked.size());
    text += marked.substr(at, mark - at);
    if (mark == marked.size()) return text;
    at = mark + 1;
  }
}

std::optional<TextShape> text_shape(std::string_view marked) {
  // Python normalizes non-ASCII identifiers, so two different texts could be the same identifier.
  if (marked.size() > kMaxText || !std::all_of(marked.begin(), marked.end(), core::is_ascii))
    return {};
  TextShape shape;
  shape.key.reserve(marked.size());
  LocalNames locals;
  for (size_t at = 0;;) {
    const size_t mark = std::min(marked.find(kLocalMark, at), marked.size());
    shape.key += marked.substr(at, mark - at);
    if (mark == marked.size()) break;
    const std::string_view name = word_at(marked, mark + 1);
    if (name.empty() || core::is_digit(name.front())) return {};
    shape.key += kLocalMark;
    shape.key += std::to_string(locals.number(name));
    shape.key += ':';
    shape.key += std::to_string(name.size());  // the length shifts columns stored in compiled code
    at = mark + 1 + name.size();
  }
  if (mentions_local(marked, locals)) return {};
  shape.names = locals.take();
  return shape;
}

namespace {

// Returns whether a function is never freed, so that a cache may own it.
bool is_permanent(PyObject* target) {
  auto* type = reinterpret_cast<PyObject*>(Py_TYPE(target));
  if (type == symbols.op_overload_type) return true;
  if (!PyCFunction_CheckExact(target)) return false;
  PyObject* owner = PyCFunction_GET_SELF(target);
  return owner == nullptr || PyModule_CheckExact(owner) || PyType_Check(owner);
}

TargetKind kind_of(std::string_view name) {
  constexpr std::string_view kNames[] = {"operator", "inplace", "qualified", "global"};
  for (size_t i = 0; i < std::size(kNames); ++i) {
    if (name == kNames[i]) return static_cast<TargetKind>(i);
  }
  raise(PyExc_ValueError, "unknown type of target: %s", std::string(name).c_str());
}

TargetText query_target(PyObject* target) {
  const Ref answer = call(symbols.describe_target, target);
  const char* kind = nullptr;
  PyObject* text = nullptr;
  if (PyArg_ParseTuple(answer.get(), "sU", &kind, &text) == 0) throw_python_error();
  return {kind_of(kind), std::string(utf8(text))};
}

}  // namespace

const TargetText& describe_target(PyObject* target) {
  static auto* permanent = new ObjectMap<TargetText>();
  static auto* last = new TargetText();
  if (!is_permanent(target)) return *last = query_target(target);
  return permanent->get(target, [&] { return query_target(target); });
}

namespace {

std::vector<std::string> texts(PyObject* list) {
  std::vector<std::string> result;
  for (PyObject* text : items_of(list)) result.emplace_back(utf8(text));
  return result;
}

std::string marked(std::string_view name) {
  return kLocalMark + std::string(name);
}

std::string joined(const std::vector<std::string>& names) {
  std::string text;
  for (const std::string& name : names) text += (text.empty() ? "" : ", ") + marked(name);
  return text;
}

bool has_mark(const std::vector<std::string>& names) {
  return std::ranges::any_of(
      names, [](const std::string& name) { return name.find(kLocalMark) != std::string::npos; });
}

}  // namespace

std::optional<TreeInputs> read_tree_inputs(PyObject* codegen) {
  const Ref parts = call(symbols.tree_inputs, codegen);
  if (parts.get() == Py_None) return std::nullopt;
  PyObject* parameters = nullptr;
  PyObject* positional = nullptr;
  PyObject* keys = nullptr;
  int builds_outputs = 0;
  if (PyArg_ParseTuple(parts.get(), "O!O!Op", &PyList_Type, &parameters, &PyList_Type, &positional,
                       &keys, &builds_outputs) == 0) {
    throw_python_error();
  }
  TreeInputs inputs = {
      texts(parameters), texts(positional), keys != Py_None, {}, builds_outputs != 0};
  if (inputs.has_keywords) {
    const std::vector<std::string> keywords = texts(keys);
    if (has_mark(keywords)) return std::nullopt;
    for (size_t i = 0, k = inputs.positional.size(); i < keywords.size(); ++i, ++k) {
      if (k < inputs.parameters.size())
        inputs.keywords.emplace_back(keywords[i], inputs.parameters[k]);
    }
  }
  if (has_mark(inputs.parameters)) return std::nullopt;
  return inputs;
}

std::string tree_prologue(const TreeInputs& inputs, const std::vector<std::string>& values) {
  std::string text = "def forward(" + marked("self");
  for (const std::string& parameter : inputs.parameters) text += ", " + marked(parameter);
  text += "):";
  if (values.empty()) return text;
  text += "\n    ";
  for (const std::string& value : values) text += (&value == &values[0] ? "" : ", ") + value;
  text += ", = fx_pytree.tree_flatten_spec(";
  const std::string flat = "[" + joined(inputs.positional) + "]";
  if (inputs.has_keywords) {
    text += "(" + flat + ", {";
    const char* separator = "";
    for (const auto& [key, parameter] : inputs.keywords) {
      text += separator;
      text += "'" + key + "':" + marked(parameter);
      separator = ", ";
    }
    text += "})";
  } else {
    text += flat;
  }
  return text + ", " + marked("self") + "._in_spec)";
}

}  // namespace fxpress::fx
