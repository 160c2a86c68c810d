#include "serde/operators.h"

#include "serde/symbols.h"

namespace fxpress::serde {

namespace {

// The items of what Python has described: tuples of our own making.
PyObject* item(PyObject* tuple, Py_ssize_t i) {
  return PyTuple_GET_ITEM(tuple, i);
}

long number(PyObject* value) {
  const long result = PyLong_AsLong(value);
  if (result == -1 && PyErr_Occurred() != nullptr) throw_python_error();
  return result;
}

}  // namespace

Operator operator_of(PyObject* tuple) {
  Operator result{static_cast<OperatorKind>(number(item(tuple, 0))),
                  false,
                  item(tuple, 4) == Py_True,
                  item(tuple, 5) == Py_True,
                  std::string(utf8(item(tuple, 1))),
                  {},
                  {}};
  PyObject* arguments = item(tuple, 2);
  for (Py_ssize_t i = 0; i < PyTuple_GET_SIZE(arguments); ++i) {
    PyObject* argument = item(arguments, i);
    result.arguments.push_back({std::string(utf8(item(argument, 0))), item(argument, 1) == Py_True,
                                Ref::borrow(item(argument, 2))});
  }
  PyObject* returns = item(tuple, 3);
  for (Py_ssize_t i = 0; i < PyTuple_GET_SIZE(returns); ++i) {
    result.returns.push_back(static_cast<ReturnKind>(number(item(returns, i))));
  }
  result.single_list = result.returns.size() == 1 && result.returns[0] == ReturnKind::kTensorList;
  return result;
}

const Operator& OperatorTable::get(PyObject* target) {
  const auto key = static_cast<uint64_t>(reinterpret_cast<uintptr_t>(target));
  const uint32_t known = ids_.find(key);
  if (known != core::FlatMap::kAbsent) return operators_[known];
  const Ref described = Ref::steal(PyObject_CallOneArg(symbols.describe_operator, target));
  operators_.push_back(operator_of(described.get()));
  targets_.push_back(Ref::borrow(target));
  ids_.insert(key, static_cast<uint32_t>(operators_.size() - 1));
  return operators_.back();
}

}  // namespace fxpress::serde
