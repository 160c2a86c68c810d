#include "tracking/lookup.h"

#include <array>
#include <optional>
#include <string>
#include <string_view>

#include "py/instance_dict.h"
#include "py/text.h"

namespace fxpress::tracking {

namespace {

void expect_names(PyObject* names) {
  if (!PyTuple_Check(names)) raise(PyExc_TypeError, "expected a tuple of names, got %R", names);
  for (PyObject* name : items_of(names)) {
    if (!PyUnicode_Check(name)) raise(PyExc_TypeError, "expected a str as a name, got %R", name);
  }
}

constexpr std::array<std::string_view, 3> kTables = {"._modules[", "._parameters[", "._buffers["};

struct Subscript {
  std::string_view key;
  size_t end = 0;  // index in the path, just after the closing bracket
};

// Parses `._modules['k']`, or a subscript of another table, at `begin` in the path.
std::optional<Subscript> subscript_at(std::string_view path, size_t begin) {
  for (const std::string_view table : kTables) {
    if (path.compare(begin, table.size(), table) != 0) continue;
    const size_t quote = begin + table.size();
    if (quote >= path.size() || (path[quote] != '\'' && path[quote] != '"')) return std::nullopt;
    const size_t close = path.find_first_of("'\"]", quote + 1);
    if (close == std::string_view::npos || close == quote + 1) return std::nullopt;
    if (path[close] != path[quote] || close + 1 >= path.size() || path[close + 1] != ']') {
      return std::nullopt;
    }
    return Subscript{path.substr(quote + 1, close - quote - 1), close + 2};
  }
  return std::nullopt;
}

std::string without_tables(std::string_view path) {
  std::string result;
  result.reserve(path.size());
  size_t done = 0;
  for (size_t at = path.find("._"); at != std::string_view::npos; at = path.find("._", at)) {
    const std::optional<Subscript> found = subscript_at(path, at);
    if (!found) {
      ++at;
      continue;
    }
    result.append(path, done, at - done).append(1, '.').append(found->key);
    done = at = found->end;
  }
  return result.append(path, done);
}

}  // namespace

Ref class_attribute(PyObject* type, PyObject* name) {
  if (!PyType_Check(type)) raise(PyExc_TypeError, "expected a class, got %R", type);
  if (!PyUnicode_Check(name)) raise(PyExc_TypeError, "expected a str as a name, got %R", name);
  return Ref::borrow(_PyType_Lookup(reinterpret_cast<PyTypeObject*>(type), name));
}

bool has_empty_tables(PyObject* module, PyObject* names) {
  expect_names(names);
  const Ref ns = instance_dict(module);
  for (PyObject* name : items_of(names)) {
    if (_PyType_Lookup(Py_TYPE(module), name) != nullptr) return false;
    PyObject* table = readable_table(ns.get(), name);
    if (table == nullptr || PyDict_GET_SIZE(table) != 0) return false;
  }
  return true;
}

bool has_plain_tables(PyObject* ns, PyObject* names) {
  expect_names(names);
  if (!PyDict_Check(ns)) raise(PyExc_TypeError, "expected a dict as the namespace, got %R", ns);
  for (PyObject* name : items_of(names)) {
    if (dict_table(ns, name) == nullptr) return false;
  }
  return true;
}

Ref path_without_tables(PyObject* path) {
  if (!PyUnicode_Check(path)) raise(PyExc_TypeError, "expected a str as a path, got %R", path);
  const Text text(path);
  const std::string cleaned = without_tables(text.view());
  return cleaned.size() == text.view().size() ? Ref::borrow(path) : new_text(cleaned);
}

}  // namespace fxpress::tracking
