#include "view/json_value.h"

#include "py/text.h"

namespace fxpress::view {

using schema::JsonIndex;

namespace {

std::shared_ptr<const JsonText> read(PyObject* bytes, core::Budget& budget) {
  const std::string_view text(PyBytes_AS_STRING(bytes),
                              static_cast<size_t>(PyBytes_GET_SIZE(bytes)));
  std::string problem;
  try {
    const auto index = [&] {
      const pybind11::gil_scoped_release release;
      return JsonIndex(text, budget);
    };
    return std::make_shared<const JsonText>(JsonText{Ref::borrow(bytes), index()});
  } catch (const schema::JsonError& error) {
    problem = error.what();
  }
  raise(PyExc_ValueError, "%s", problem.c_str());
}

// A value in an error.
std::string described(const JsonIndex& index, uint32_t value) {
  constexpr size_t kLongest = 40;
  if (!index.is_object(value) && !index.is_list(value)) {
    return schema::shown(index.raw(value).substr(0, kLongest));
  }
  size_t count = 0;
  for (uint32_t at = index.first_in(value); at != index.end_of(value); at = index.next(at)) ++count;
  return (index.is_list(value) ? "a list of " : "an object of ") + std::to_string(count);
}

[[noreturn]] void refuse(const JsonIndex& index, uint32_t value, const char* expected) {
  raise(PyExc_TypeError, "expected %s, got %s", expected, described(index, value).c_str());
}

}  // namespace

void expect_object(const JsonIndex& index, uint32_t value) {
  if (!index.is_object(value)) refuse(index, value, "an object");
}

void expect_list(const JsonIndex& index, uint32_t value) {
  if (!index.is_list(value)) refuse(index, value, "a list");
}

void expect_text(const JsonIndex& index, uint32_t value) {
  if (!index.is_text(value)) refuse(index, value, "a text");
}

uint32_t field_of(const JsonIndex& index, uint32_t object, std::string_view key) {
  expect_object(index, object);
  const uint32_t found = index.find(object, key);
  if (found != JsonIndex::kNone) return found;
  PyErr_SetObject(PyExc_KeyError, new_text(key).get());
  throw_python_error();
}

Ref load_json(std::string_view text) {
  static PyObject* const loads = [] {
    const Ref json = Ref::steal(PyImport_ImportModule("json"));
    return check(PyObject_GetAttrString(json.get(), "loads"));
  }();
  return Ref::steal(PyObject_CallOneArg(loads, new_text(text).get()));
}

uint64_t cost_of(const JsonIndex& index, uint32_t value) {
  constexpr uint64_t kValueBytes = 200;  // with the slot that it is in, and its key
  return kValueBytes * (uint64_t{1} + index.size_within(value)) + 2 * index.raw(value).size();
}

JsonValue::JsonValue(const pybind11::bytes& text, core::Budget& budget)
    : text_(read(text.ptr(), budget)), number_(0) {}

JsonValue JsonValue::field(std::string_view key) const {
  return {text_, field_of(index(), number_, key)};
}

Ref JsonValue::load() const {
  return load_json(index().raw(number_));
}

uint64_t JsonValue::cost() const {
  return cost_of(index(), number_);
}

}  // namespace fxpress::view
