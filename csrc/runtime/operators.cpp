#include "runtime/operators.h"

#include <atomic>
#include <memory>
#include <string>
#include <string_view>

namespace fxpress::runtime {

namespace {

std::atomic<uint64_t> gone = 0;

class Listener final : public c10::OpRegistrationListener {
 public:
  void onOperatorRegistered(const c10::OperatorHandle&) override {}
  // The dispatcher holds its lock.
  void onOperatorDeregistered(const c10::OperatorHandle&) override { ++gone; }
};

}  // namespace

void watch_operators() {
  // For good: there is no moment at which nobody has a plan any more.
  static auto* const watching = new c10::RegistrationHandleRAII(
      c10::Dispatcher::singleton().addRegistrationListener(std::make_unique<Listener>()));
  (void)watching;
}

uint64_t operators_gone() {
  return gone.load(std::memory_order_acquire);
}

std::optional<c10::OperatorHandle> find_operator(PyObject* overload) {
  const Ref name = Ref::steal(PyObject_GetAttr(overload, names.op_name));
  if (!PyUnicode_Check(name.get())) return std::nullopt;
  const std::string_view text = fx::utf8(name.get());  // "aten::add.Tensor", "aten::relu"
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

}  // namespace fxpress::runtime
