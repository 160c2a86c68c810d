// Texts and integers as the sinks take them.
#pragma once

#include "py/object.h"
#include "schema/event_sink.h"

namespace fxpress::serde {

// UTF-8; lone surrogates, which UTF-8 does not have, as if they were characters.
class Text {
 public:
  explicit Text(PyObject* string) {
    if (!PyUnicode_Check(string)) {
      raise(PyExc_TypeError, "expected a str, got %S", Py_TYPE(string));
    }
    Py_ssize_t size = 0;
    const char* text = PyUnicode_AsUTF8AndSize(string, &size);
    if (text == nullptr) {
      PyErr_Clear();
      bytes_ = Ref::steal(PyUnicode_AsEncodedString(string, "utf-8", "surrogatepass"));
      text = PyBytes_AS_STRING(bytes_.get());
      size = PyBytes_GET_SIZE(bytes_.get());
    }
    view_ = {text, static_cast<size_t>(size)};
  }
  std::string_view view() const { return view_; }

 private:
  Ref bytes_;              // set where the str has no UTF-8
  std::string_view view_;  // valid as long as this and the str are
};

// An int of any size.
inline void write_integer(PyObject* value, schema::EventSink& sink) {
  int overflow = 0;
  const long long small = PyLong_AsLongLongAndOverflow(value, &overflow);
  if (small == -1 && PyErr_Occurred() != nullptr) throw_python_error();
  if (overflow == 0) return sink.integer(small);
  sink.big_integer(utf8(Ref::steal(PyNumber_ToBase(value, 10)).get()));
}

}  // namespace fxpress::serde
