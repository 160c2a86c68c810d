#include "engine/operators.h"

#include <atomic>
#include <functional>
#include <memory>
#include <string>
#include <string_view>

namespace fxpress::engine {

namespace {

// An operator that has gone. They are kept for good, the last one first: a few bytes for each, that
// any thread may read without a lock, in the child of a fork too.
struct Gone {
  size_t op;        // what tells it from others: a later one may have the same
  uint64_t number;  // it was the first, the second, ... that went
  const Gone* before;
};
std::atomic<const Gone*> last_gone = nullptr;

size_t id_of(const c10::OperatorHandle& op) {
  return std::hash<c10::OperatorHandle>()(op);
}

class Listener final : public c10::OpRegistrationListener {
 public:
  void onOperatorRegistered(const c10::OperatorHandle&) override {}
  // The dispatcher holds its lock.
  void onOperatorDeregistered(const c10::OperatorHandle& op) override {
    const Gone* before = last_gone.load(std::memory_order_relaxed);
    last_gone.store(new Gone{id_of(op), before == nullptr ? 1 : before->number + 1, before},
                    std::memory_order_release);
  }
};

}  // namespace

void watch_operators() {
  // The listener stays for good: a plan may exist at any moment.
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
      reinterpret_cast<PyObject*>(Py_TYPE(callee)) != symbols.op_overload_type) {
    return Ref::borrow(callee);
  }
  return Ref::steal(PyObject_CallOneArg(symbols.living_overload, callee));
}

}  // namespace fxpress::engine
