// Symbols in the shapes of values: a partition that takes a tensor also needs their binders.
#pragma once

#include <unordered_map>
#include <vector>

#include "core/ids.h"
#include "py/object.h"

namespace fxpress::split {

enum class BinderRule : uint8_t {
  kSymIntOrFloat,  // split_module: the example value is a SymInt or SymFloat
  kAnySymbolic,    // split_module_simple: anything with a symbolic expression
};

class SymbolBinders {
 public:
  explicit SymbolBinders(BinderRule rule);

  // The first node whose example value is a bare symbol binds it: placeholders come first.
  void visit(core::NodeId id, PyObject* node);

  // The binders of the free symbols in a value's example, in the order of str(symbol). Symbols
  // that no node binds have no input to pass: they are left out, where torch's split_module fails
  // with a KeyError. The symbols of a value are computed once, and by the rule of
  // split_module_simple not before a binder has been visited: torch never looks at example values
  // that it cannot read there.
  std::vector<core::NodeId> needed_by(core::NodeId def, PyObject* node);

 private:
  bool is_candidate(PyObject* value) const;
  Ref free_symbols(PyObject* node) const;

  BinderRule rule_;
  Ref binders_;                                // dict: sympy symbol -> int, the node
  std::unordered_map<uint32_t, Ref> symbols_;  // by value: sorted list of symbols, or empty
};

}  // namespace fxpress::split
