#include "fx/codegen_target.h"

#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "core/flat_map.h"
#include "fx/symbols.h"

namespace fxpress::fx {

namespace {

// Functions that live as long as the process: remembering them by address leaks nothing.
bool is_permanent(PyObject* target) {
  auto* type = reinterpret_cast<PyObject*>(Py_TYPE(target));
  if (type == symbols.op_overload_type) return true;
  if (!PyCFunction_CheckExact(target)) return false;
  PyObject* owner = PyCFunction_GET_SELF(target);
  return owner == nullptr || PyModule_CheckExact(owner) || PyType_Check(owner);
}

TargetKind kind_of(std::string_view name) {
#define FXPRESS_KIND(kind, text) \
  if (name == #text) return TargetKind::kind;
#include "fx/target_kinds.def"
#undef FXPRESS_KIND
  raise(PyExc_ValueError, "%s is no kind of target", std::string(name).c_str());
}

TargetText ask(PyObject* target) {
  const Ref answer = Ref::steal(PyObject_CallOneArg(symbols.describe_target, target));
  const char* kind = nullptr;
  PyObject* text = nullptr;
  if (PyArg_ParseTuple(answer.get(), "sU", &kind, &text) == 0) throw_python_error();
  return {kind_of(kind), std::string(utf8(text))};
}

struct Known {
  Ref target;       // keeps the address taken
  TargetText text;  // what torch's rules said
};

}  // namespace

const TargetText& describe_target(PyObject* target) {
  static core::FlatMap* by_address = new core::FlatMap();
  static auto* known = new std::vector<std::unique_ptr<Known>>();
  static TargetText* last = new TargetText();
  const auto key = reinterpret_cast<uintptr_t>(target);
  if (const uint32_t slot = by_address->find(key); slot != core::FlatMap::kAbsent) {
    return (*known)[slot]->text;
  }
  TargetText text = ask(target);
  if (!is_permanent(target)) return *last = std::move(text);
  const auto slot = static_cast<uint32_t>(known->size());
  known->push_back(std::make_unique<Known>(Known{Ref::borrow(target), std::move(text)}));
  by_address->insert(key, slot);
  return (*known)[slot]->text;
}

}  // namespace fxpress::fx
