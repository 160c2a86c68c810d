#include "engine/operators.h"

#include <atomic>
#include <functional>
#include <memory>
#include <string>
#include <string_view>
#include <unordered_set>
#include <utility>

#include "engine/symbols.h"
#include "py/calls.h"

namespace fxpress::engine {

namespace {

// A removed operator, in a linked list that begins with the last removal. The list is never freed,
// so that any thread, also in a forked child, can read it without a lock.
struct Gone {
  size_t op;        // id_of() of the operator; a later operator may get the same id
  uint64_t number;  // position in the order of removals, from 1
  const Gone* before;
};
std::atomic<const Gone*> last_gone = nullptr;

size_t id_of(const c10::OperatorHandle& op) {
  return std::hash<c10::OperatorHandle>()(op);
}

class Listener final : public c10::OpRegistrationListener {
 public:
  void onOperatorRegistered(const c10::OperatorHandle&) override {}
  // The dispatcher calls this function while it holds its lock.
  void onOperatorDeregistered(const c10::OperatorHandle& op) override {
    const Gone* before = last_gone.load(std::memory_order_relaxed);
    last_gone.store(new Gone{id_of(op), before == nullptr ? 1 : before->number + 1, before},
                    std::memory_order_release);
  }
};

constexpr std::string_view kNamespace = "aten::";

// A copy of torch's set of Python kernels. A set has no version, so a new value of `used` or
// `filled` shows a change. A change goes unnoticed only if equally many kernels are added and
// removed, and the set's hash table is rebuilt in between.
struct Table {
  Py_ssize_t used = -1;                   // number of kernels
  Py_ssize_t filled = -1;                 // table entries in use, including deleted kernels
  uint64_t version = 0;                   // incremented when `names` changes
  std::unordered_set<std::string> names;  // operators of aten in the set, without "aten::"
};

// Returns the names of aten's operators in `kernels`, a set of texts such as "aten/add.Tensor/CPU"
// (namespace/operator/dispatch key). Skips torch's many meta kernels, which only compute shapes.
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

void watch_operators() {
  // The listener is never removed, because plans may exist until the process ends.
  static auto* const watching = new c10::RegistrationHandleRAII(
      c10::Dispatcher::singleton().addRegistrationListener(std::make_unique<Listener>()));
  (void)watching;
}

uint64_t operators_gone() {
  const Gone* last = last_gone.load(std::memory_order_acquire);
  return last == nullptr ? 0 : last->number;
}

bool has_gone(const c10::OperatorHandle& op, uint64_t since) {
  const Gone* gone = last_gone.load(std::memory_order_acquire);
  for (; gone != nullptr && gone->number > since; gone = gone->before) {
    if (gone->op == id_of(op)) return true;
  }
  return false;
}

std::optional<c10::OperatorHandle> find_operator(PyObject* overload) {
  const Ref name = Ref::steal(PyObject_GetAttr(overload, names.op_name));
  if (!PyUnicode_Check(name.get())) return std::nullopt;
  const std::string_view text = utf8(name.get());  // "aten::add.Tensor", "aten::relu"
  const size_t colons = text.find("::");
  const size_t dot = text.find('.', colons == std::string_view::npos ? 0 : colons);
  c10::OperatorName operator_name(
      std::string(text.substr(0, dot)),
      dot == std::string_view::npos ? std::string() : std::string(text.substr(dot + 1)));
  auto found = c10::Dispatcher::singleton().findSchema(operator_name);
  if (found.has_value() && !found->hasSchema()) return std::nullopt;
  return found;
}

Ref living_callee(PyObject* callee) {
  if (operators_gone() == 0 ||
      reinterpret_cast<PyObject*>(Py_TYPE(callee)) != fx::symbols.op_overload_type) {
    return Ref::borrow(callee);
  }
  return call(symbols.living_overload, callee);
}

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
