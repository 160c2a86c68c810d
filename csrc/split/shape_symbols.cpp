#include "split/shape_symbols.h"

#include "fx/symbols.h"

namespace fxpress::split {

using core::NodeId;

namespace {

// node.meta.get("example_value"), None counted as absent; owned.
Ref example_value(PyObject* node) {
  const Ref meta = fx::node_field(node, fx::symbols.node_meta);
  PyObject* value =
      PyDict_Check(meta.get()) ? dict_get(meta.get(), fx::names.example_value) : nullptr;
  return value == Py_None ? Ref() : Ref::borrow(value);
}

// Ordinary tensors know it; others (subclasses with sizes of their own) are looked into.
bool has_static_shape(PyObject* value) {
  auto* type = reinterpret_cast<PyObject*>(Py_TYPE(value));
  if (type != fx::symbols.fake_tensor_type && type != fx::symbols.tensor_type &&
      type != fx::symbols.parameter_type) {
    return false;
  }
  return get_attr(value, fx::names.has_symbolic_sizes_strides).get() == Py_False;
}

}  // namespace

SymbolBinders::SymbolBinders(BinderRule rule) : rule_(rule), binders_(Ref::steal(PyDict_New())) {}

bool SymbolBinders::is_candidate(PyObject* value) const {
  if (is_a(value, fx::symbols.tensor_type)) return false;
  if (rule_ == BinderRule::kAnySymbolic) return true;
  const int symbolic = PyObject_IsInstance(value, fx::symbols.sym_int_float_types);
  check(symbolic);
  return symbolic == 1;
}

void SymbolBinders::visit(NodeId id, PyObject* node) {
  const Ref value = example_value(node);
  if (!value || !is_candidate(value.get())) return;
  const Ref sym_node = find_attr(value.get(), fx::names.node);
  if (!sym_node) return;
  const Ref expr = find_attr(sym_node.get(), fx::names.expr);
  if (!expr) return;
  const int is_symbol = PyObject_IsInstance(expr.get(), fx::symbols.sympy_symbol_type);
  check(is_symbol);
  if (is_symbol == 0) return;
  const Ref index = Ref::steal(PyLong_FromUnsignedLong(id.value()));
  check(PyDict_SetDefault(binders_.get(), expr.get(), index.get()));
}

Ref SymbolBinders::free_symbols(PyObject* node) const {
  const Ref value = example_value(node);
  if (!value || has_static_shape(value.get())) return {};
  const Ref free = Ref::steal(PyObject_CallOneArg(fx::symbols.free_symbols, value.get()));
  Ref sorted = Ref::steal(PySequence_List(free.get()));
  const Ref sort = Ref::steal(PyObject_GetAttrString(sorted.get(), "sort"));
  const Ref key =
      Ref::steal(Py_BuildValue("{s:O}", "key", reinterpret_cast<PyObject*>(&PyUnicode_Type)));
  Ref::steal(PyObject_Call(sort.get(), fx::no_args, key.get()));
  return sorted;
}

std::vector<NodeId> SymbolBinders::needed_by(NodeId def, PyObject* node) {
  std::vector<NodeId> result;
  if (rule_ == BinderRule::kAnySymbolic && PyDict_GET_SIZE(binders_.get()) == 0) return result;
  const auto [it, added] = symbols_.try_emplace(def.value());
  if (added) it->second = free_symbols(node);
  if (!it->second) return result;
  PyObject* list = it->second.get();
  for (Py_ssize_t i = 0; i < PyList_GET_SIZE(list); ++i) {
    PyObject* binder = dict_get(binders_.get(), PyList_GET_ITEM(list, i));
    if (binder != nullptr) result.emplace_back(PyLong_AsSize_t(binder));
  }
  return result;
}

}  // namespace fxpress::split
