// A buffer that becomes a bytes object without a copy.
#pragma once

#include "py/object.h"
#include "schema/json_writer.h"

namespace fxpress::serde {

class BytesBuffer final : public schema::Buffer {
 public:
  // `expected` bytes are asked for at once: memory that is not written to costs nothing, and moving
  // what was written costs twice its size.
  explicit BytesBuffer(size_t expected) {
    bytes_ = PyBytes_FromStringAndSize(nullptr, static_cast<Py_ssize_t>(expected));
    if (bytes_ == nullptr) {
      PyErr_Clear();  // it will do with less
      return;
    }
    data_ = PyBytes_AS_STRING(bytes_);
    capacity_ = expected;
  }
  ~BytesBuffer() override { Py_XDECREF(bytes_); }

  // The bytes object; the buffer is empty afterwards.
  Ref finish() {
    grow(size_);
    data_ = nullptr;
    size_ = capacity_ = 0;
    return Ref::steal(std::exchange(bytes_, nullptr));
  }

 private:
  void grow(size_t capacity) override {
    if (bytes_ == nullptr) {
      bytes_ = check(PyBytes_FromStringAndSize(nullptr, static_cast<Py_ssize_t>(capacity)));
    } else {
      check(_PyBytes_Resize(&bytes_, static_cast<Py_ssize_t>(capacity)));
    }
    data_ = PyBytes_AS_STRING(bytes_);
    capacity_ = capacity;
  }

  PyObject* bytes_ = nullptr;  // owned; what data_ points into
};

}  // namespace fxpress::serde
