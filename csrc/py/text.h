// Converts str to UTF-8 and back.
#pragma once

#include <string_view>

#include "py/object.h"

namespace fxpress::cpython {

// The UTF-8 text of a str. Lone surrogates, which UTF-8 forbids, are encoded like other characters.
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
  Ref bytes_;              // owns the text if the str has lone surrogates
  std::string_view view_;  // valid while this object and the str exist
};

// Returns the str of a UTF-8 text that may contain encoded lone surrogates.
inline Ref new_text(std::string_view text) {
  return Ref::steal(
      PyUnicode_DecodeUTF8(text.data(), static_cast<Py_ssize_t>(text.size()), "surrogatepass"));
}

}  // namespace fxpress::cpython
