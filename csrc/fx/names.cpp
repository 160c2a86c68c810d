#include "fx/names.h"

#include <algorithm>
#include <string>

#include "fx/symbols.h"
#include "py/calls.h"

namespace fxpress::fx {

namespace {

constexpr size_t kRememberedNames = 4096;

bool is_lower(char c) {
  return c >= 'a' && c <= 'z';
}
bool is_upper(char c) {
  return c >= 'A' && c <= 'Z';
}

// Converts "softmaxBackward" to "softmax_backward", by the rule of torch.fx.graph._snake_case.
std::string snake_case(std::string_view text) {
  std::string out;
  out.reserve(text.size() + 4);
  for (size_t i = 0; i < text.size(); ++i) {
    if (!is_upper(text[i])) {
      out.push_back(text[i]);
      continue;
    }
    if (i > 0 && is_lower(text[i - 1])) out.push_back('_');
    out.push_back(static_cast<char>(text[i] - 'A' + 'a'));
  }
  return out;
}

}  // namespace

// Returns the cached tables of the last NameWriter. Without this cache, a small call would spend
// most of its time on reading the names that torch forbids. Requires the GIL. The cache is never
// freed, because static objects are destroyed after Python.
std::unique_ptr<NameWriter::Tables>& NameWriter::spare(Forbidden forbidden) {
  static auto* spares = new std::unique_ptr<Tables>[2];
  return spares[static_cast<size_t>(forbidden)];
}

NameWriter::NameWriter(Forbidden forbidden)
    : forbidden_(forbidden), tables_(std::move(spare(forbidden))) {
  if (!tables_ || tables_->forbidden != PyDict_GET_SIZE(symbols.illegal_names)) reset();
}

NameWriter::~NameWriter() {
  if (tables_->pool.size() > kRememberedNames) return;
  // by_target has functions as keys, and the cache must not keep functions alive.
  tables_->by_target = {};
  std::swap(spare(forbidden_), tables_);
}

void NameWriter::reset() {
  tables_ = std::make_unique<Tables>();
  tables_->forbidden = PyDict_GET_SIZE(symbols.illegal_names);
  for (const auto& [name, owner] : DictRange(symbols.illegal_names)) {
    if (forbidden_ == Forbidden::kForNodes && owner == Py_None) continue;
    tables_->names.forbid(intern(utf8(name)));
  }
}

void NameWriter::begin_graph() {
  if (tables_->pool.size() > kRememberedNames) reset();
  tables_->names.begin_graph();
}

core::StringId NameWriter::add(PyObject* name) {
  const core::StringId id = intern(utf8(name));
  if (tables_->strings.size() <= id.value()) tables_->strings.resize(tables_->pool.size() + 16);
  if (!tables_->strings[id.value()] && PyUnicode_CheckExact(name)) {
    tables_->strings[id.value()] = Ref::borrow(name);
  }
  return id;
}

core::StringId NameWriter::candidate(PyObject* name) {
  const core::StringId raw = add(name);
  if (!PyUnicode_IS_ASCII(name)) {
    // Python's rules are needed to recognize non-ASCII digits and letters.
    const Ref parsed = call(symbols.parse_name, name);
    PyObject* legal = nullptr;
    PyObject* base = nullptr;
    PyObject* digits = nullptr;
    if (PyArg_ParseTuple(parsed.get(), "UUU", &legal, &base, &digits) == 0) throw_python_error();
    const std::string_view number = utf8(digits);
    table().define(raw, add(legal), add(base),
                   number.empty() ? core::NameTable::kNoNumber : table().number(number));
  }
  return raw;
}

core::StringId NameWriter::candidate_for_text(std::string_view target) {
  if (target.starts_with("__") && target.ends_with("__")) {
    target = target.size() >= 4 ? target.substr(2, target.size() - 4) : std::string_view();
  }
  if (std::none_of(target.begin(), target.end(), is_upper)) return intern(target);
  return intern(snake_case(target));
}

core::StringId NameWriter::candidate_for_target(PyObject* target) {
  return tables_->by_target.get(target, [&] {
    return PyUnicode_CheckExact(target) && PyUnicode_IS_ASCII(target)
               ? candidate_for_text(utf8(target))
               : candidate(call(symbols.target_to_str, target).get());
  });
}

Ref NameWriter::count(core::StringId base) {
  const int64_t number = table().count(base);
  if (number >= 0) return Ref::steal(PyLong_FromLongLong(number));
  return Ref::steal(PyLong_FromString(table().digits(number).c_str(), nullptr, 10));
}

PyObject* NameWriter::string(core::StringId id) {
  if (tables_->strings.size() <= id.value()) tables_->strings.resize(tables_->pool.size() + 16);
  Ref& string = tables_->strings[id.value()];
  if (!string) string = new_string(text(id));
  return string.get();
}

}  // namespace fxpress::fx
