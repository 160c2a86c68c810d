// The contiguous bytes of a Python object.
#pragma once

#include "archive/crc32.h"
#include "py/object.h"

namespace fxpress::archive {

class View {
 public:
  explicit View(const pybind11::handle& object) {
    check(PyObject_GetBuffer(object.ptr(), &view_, PyBUF_SIMPLE));
  }
  View(const View&) = delete;
  View& operator=(const View&) = delete;
  ~View() { PyBuffer_Release(&view_); }

  Bytes bytes() const {
    return {static_cast<const std::byte*>(view_.buf), static_cast<size_t>(view_.len)};
  }

 private:
  Py_buffer view_{};
};

}  // namespace fxpress::archive
