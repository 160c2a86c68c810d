#include "serde/operators.h"

#include "py/calls.h"
#include "py/text.h"
#include "serde/symbols.h"

namespace fxpress::serde {

namespace {

// Returns item i of a tuple that describe_operator() returned; borrowed.
PyObject* item(PyObject* tuple, Py_ssize_t i) {
  return PyTuple_GET_ITEM(tuple, i);
}

}  // namespace

Operator operator_of(PyObject* described, PyObject* object) {
  const auto flag = [](PyObject* tuple, Py_ssize_t i) { return item(tuple, i) == Py_True; };
  Operator result{static_cast<OperatorKind>(to_long(item(described, 0))),
                  flag(described, 4),
                  flag(described, 5),
                  flag(described, 6),
                  flag(described, 7),
                  std::string(utf8(item(described, 1))),
                  Ref::borrow(object),
                  {},
                  {}};
  PyObject* arguments = item(described, 2);
  for (Py_ssize_t i = 0; i < PyTuple_GET_SIZE(arguments); ++i) {
    PyObject* argument = item(arguments, i);
    result.arguments.push_back({std::string(utf8(item(argument, 0))), flag(argument, 1),
                                flag(argument, 2), flag(argument, 3),
                                Ref::borrow(item(argument, 4))});
  }
  PyObject* returns = item(described, 3);
  for (Py_ssize_t i = 0; i < PyTuple_GET_SIZE(returns); ++i) {
    result.returns.push_back(static_cast<ReturnKind>(to_long(item(returns, i))));
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
  PyObject* target = item(resolved.get(), 0);
  const Operator& found =
      operators_.get(target, [&] { return operator_of(item(resolved.get(), 1), target); });
  by_text_.emplace(text, &found);
  return found;
}

}  // namespace fxpress::serde
