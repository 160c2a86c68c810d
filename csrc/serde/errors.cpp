#include "serde/errors.h"

#include "serde/symbols.h"

namespace fxpress::serde {

void node_failed(PyObject* node, pybind11::error_already_set& error) {
  if (!error.matches(PyExc_Exception)) throw error;
  const pybind11::object& value = error.value();
  PyObject* arguments[] = {node, value.ptr()};
  Ref::steal(PyObject_Vectorcall(symbols.node_failed, arguments, 2, nullptr));
  throw error;  // node_failed() always raises
}

bool has_torch() {
  return symbols.serialize_error != nullptr;
}

PyObject* damage_error() {
  return has_torch() ? symbols.serialize_error : PyExc_ValueError;
}

}  // namespace fxpress::serde
