#include "serde/scalars.h"

#include <string>

namespace fxpress::serde {

using schema::ValueKind;

Ref scalar(const schema::Document& document, const schema::Value& value) {
  switch (value.kind) {
    case ValueKind::kNull:
      return Ref::borrow(Py_None);
    case ValueKind::kBool:
      return Ref::borrow(value.integer != 0 ? Py_True : Py_False);
    case ValueKind::kInt:
      return Ref::steal(PyLong_FromLongLong(value.integer));
    case ValueKind::kBigInt:
      return Ref::steal(PyLong_FromString(std::string(document.text(value)).c_str(), nullptr, 10));
    case ValueKind::kReal:
      return Ref::steal(PyFloat_FromDouble(value.real));
    case ValueKind::kString:
      return new_text(document.text(value));
    default:
      return {};
  }
}

}  // namespace fxpress::serde
