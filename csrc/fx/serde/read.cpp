#include "fx/serde/read.h"

#include "fx/serde/symbols.h"
#include "serde/json_reader.h"

namespace fxpress::fx::serde {

using ::fxpress::serde::Document;
using ::fxpress::serde::Schema;

Document read_document(const Schema& schema, PyObject* bytes, const std::string& type) {
  char* text = nullptr;
  Py_ssize_t size = 0;
  check(PyBytes_AsStringAndSize(bytes, &text, &size));
  const int position = schema.find(type);
  if (position < 0) raise(PyExc_KeyError, "%s", type.c_str());
  std::string problem;
  try {
    const pybind11::gil_scoped_release release;
    return ::fxpress::serde::read_json({text, static_cast<size_t>(size)}, schema,
                                       static_cast<uint16_t>(position));
  } catch (const ::fxpress::serde::JsonError& error) {
    problem = error.what();
  }
  const Ref message = Ref::steal(
      PyUnicode_DecodeUTF8(problem.data(), static_cast<Py_ssize_t>(problem.size()), "replace"));
  PyErr_SetObject(symbols.serialize_error, message.get());
  throw_python_error();
}

}  // namespace fxpress::fx::serde
