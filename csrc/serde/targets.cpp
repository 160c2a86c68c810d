#include "serde/targets.h"

#include "serde/scalars.h"
#include "serde/symbols.h"

namespace fxpress::serde {

namespace {

bool flag(PyObject* tuple, Py_ssize_t i) {
  return PyTuple_GET_ITEM(tuple, i) == Py_True;
}

}  // namespace

Target TargetTable::described(PyObject* parts) {
  const long kind = PyLong_AsLong(PyTuple_GET_ITEM(parts, 0));
  Target target{static_cast<Target::Kind>(kind),
                Ref::borrow(PyTuple_GET_ITEM(parts, 1)),
                flag(parts, 3),
                flag(parts, 4),
                {}};
  PyObject* arguments = PyTuple_GET_ITEM(parts, 2);
  for (Py_ssize_t i = 0; i < PyTuple_GET_SIZE(arguments); ++i) {
    PyObject* argument = PyTuple_GET_ITEM(arguments, i);
    target.arguments.push_back(
        {std::string(utf8(PyTuple_GET_ITEM(argument, 0))), flag(argument, 1), flag(argument, 2)});
  }
  return target;
}

const Target& TargetTable::get(std::string_view text) {
  if (const auto found = known_.find(text); found != known_.end()) return *found->second;
  const Ref name = new_text(text);
  const Ref parts = Ref::steal(PyObject_CallOneArg(symbols.resolve_target, name.get()));
  targets_.push_back(described(parts.get()));
  known_.emplace(text, &targets_.back());
  return targets_.back();
}

}  // namespace fxpress::serde
