#include "serde/decoding.h"

namespace fxpress::serde {

std::vector<Ref> by_number(PyObject* table) {
  std::vector<Ref> result;
  PyObject* key = nullptr;
  PyObject* number = nullptr;
  for (Py_ssize_t at = 0; PyDict_Next(table, &at, &key, &number) != 0;) {
    const size_t place = PyLong_AsSize_t(number);
    if (PyErr_Occurred() != nullptr) throw_python_error();
    if (place >= result.size()) result.resize(place + 1);
    result[place] = Ref::borrow(key);
  }
  return result;
}

}  // namespace fxpress::serde
