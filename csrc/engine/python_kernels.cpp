#include "engine/python_kernels.h"

#include <string>
#include <string_view>
#include <unordered_set>
#include <utility>

#include "engine/symbols.h"

namespace fxpress::engine {

namespace {

constexpr std::string_view kNamespace = "aten::";

// The content of torch's set of kernels when it was last read. A set has no version; the two
// numbers stay the same only if as many kernels come as go and the set's table was rebuilt between.
struct Table {
  Py_ssize_t used = -1;    // how many the set had
  Py_ssize_t filled = -1;  // how many entries of its table: grows when one is replaced
  uint64_t version = 0;    // of `names`
  std::unordered_set<std::string> names;  // operators of aten, without the namespace
};

// "aten/add.Tensor/CPU", "aten/exp/CPU": namespace, operator, key. Kernels for meta tensors don't
// count, torch has hundreds of them: they compute a shape.
std::unordered_set<std::string> read(PyObject* kernels) {
  std::unordered_set<std::string> names;
  const Ref iterator = Ref::steal(PyObject_GetIter(kernels));
  while (PyObject* next = PyIter_Next(iterator.get())) {
    const Ref item = Ref::steal(next);
    if (!PyUnicode_Check(next)) continue;
    const std::string_view text = utf8(next);
    const size_t first = text.find('/');
    const size_t second = text.rfind('/');
    if (first == second || text.substr(second + 1) == "Meta") continue;
    if (text.substr(0, first) == "aten") {
      names.emplace(text.substr(first + 1, second - first - 1));
    }
  }
  check(PyErr_Occurred() == nullptr ? 0 : -1);
  return names;
}

const Table& table() {
  static auto* known = new Table;
  const auto* kernels = reinterpret_cast<PySetObject*>(symbols.python_kernels);
  if (kernels->used != known->used || kernels->fill != known->filled) {
    auto names = read(symbols.python_kernels);
    known->used = kernels->used;
    known->filled = kernels->fill;
    if (names != known->names || known->version == 0) ++known->version;
    known->names = std::move(names);
  }
  return *known;
}

}  // namespace

uint64_t kernels_version() {
  return table().version;
}

bool may_run_python(const c10::OperatorName& name) {
  if (name.name.rfind(kNamespace, 0) != 0) return true;
  std::string key = name.name.substr(kNamespace.size());
  if (!name.overload_name.empty()) key += "." + name.overload_name;
  return table().names.count(key) != 0;
}

}  // namespace fxpress::engine
