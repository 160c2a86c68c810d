#include "serde/operators.h"

#include "py/calls.h"
#include "py/text.h"
#include "serde/symbols.h"

namespace fxpress::serde {

Operator operator_of(PyObject* described, PyObject* object) {
  const auto fields = items_of(described);
  Operator result{static_cast<OperatorKind>(to_long(fields[0])),
                  fields[4] == Py_True,
                  fields[5] == Py_True,
                  fields[6] == Py_True,
                  fields[7] == Py_True,
                  std::string(utf8(fields[1])),
                  Ref::borrow(object),
                  {},
                  {}};
  for (PyObject* argument : items_of(fields[2])) {
    const auto parts = items_of(argument);
    result.arguments.push_back({std::string(utf8(parts[0])), parts[1] == Py_True,
                                parts[2] == Py_True, parts[3] == Py_True, Ref::borrow(parts[4])});
  }
  for (PyObject* kind : items_of(fields[3])) {
    result.returns.push_back(static_cast<ReturnKind>(to_long(kind)));
  }
  return result;
}

const Operator& OperatorTable::get(PyObject* target) {
  return operators_.get(target, [&] {
    const Ref described = call(symbols.describe_operator, target);
    return operator_of(described.get(), target);
  });
}

const Operator& OperatorTable::get(std::string_view text, PyObject* resolve) {
  if (const auto known = by_text_.find(text); known != by_text_.end()) return *known->second;
  const Ref resolved = call(resolve, new_text(text));
  PyObject* target = PyTuple_GET_ITEM(resolved.get(), 0);
  PyObject* described = PyTuple_GET_ITEM(resolved.get(), 1);
  const Operator& found = operators_.get(target, [&] { return operator_of(described, target); });
  by_text_.emplace(text, &found);
  return found;
}

}  // namespace fxpress::serde
