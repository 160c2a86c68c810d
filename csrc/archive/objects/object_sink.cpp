#include "archive/objects/object_sink.h"

#include <algorithm>
#include <utility>

namespace fxpress::archive {

namespace py = pybind11;

namespace {

constexpr size_t kCopied = size_t{1} << 20;  // bytes: of a piece, which stays in the cache

// Whether an object's write() is one of Python's own that keeps nothing of what it gets: memory, a
// file of the system, a buffer in front of one.
bool keeps_nothing(const py::object& write) {
  static PyObject* const io = check(PyImport_ImportModule("_io"));
  if (!PyCFunction_Check(write.ptr())) return false;
  PyObject* owner = PyCFunction_GET_SELF(write.ptr());
  const auto is = [&](const py::handle& object, const char* type) {
    return py::type::handle_of(object).is(py::handle(io).attr(type));
  };
  if (owner == nullptr) return false;
  if (is(owner, "BytesIO") || is(owner, "FileIO")) return true;
  return (is(owner, "BufferedWriter") || is(owner, "BufferedRandom")) &&
         is(py::handle(owner).attr("raw"), "FileIO");
}

void check_written(const py::object& done, size_t size) {
  if (!PyLong_Check(done.ptr())) return;  // it does not say
  int is_too_large = 0;
  const long long taken = PyLong_AsLongLongAndOverflow(done.ptr(), &is_too_large);
  if (is_too_large != 0 || taken < 0 || static_cast<size_t>(taken) != size) {
    raise(PyExc_OSError, "the file took a part of the bytes only");
  }
}

struct Released {
  const py::memoryview& view;
  ~Released() {
    const py::error_scope error;  // the one that is on its way
    if (PyObject* done = PyObject_CallMethod(view.ptr(), "release", nullptr)) {
      Py_DECREF(done);
    } else {
      PyErr_Clear();
    }
  }
};

}  // namespace

ObjectSink::ObjectSink(py::object write)
    : write_(std::move(write)), is_trusted_(keeps_nothing(write_)) {}

void ObjectSink::write(Bytes bytes) {
  const py::gil_scoped_acquire acquire;
  if (is_trusted_) return write_view(bytes);
  for (; !bytes.empty(); bytes = bytes.subspan(std::min(bytes.size(), kCopied))) {
    const Bytes piece = bytes.first(std::min(bytes.size(), kCopied));
    check_written(write_(py::bytes(reinterpret_cast<const char*>(piece.data()), piece.size())),
                  piece.size());
  }
}

void ObjectSink::write_view(Bytes bytes) {
  const auto view = py::memoryview::from_memory(bytes.data(), static_cast<ssize_t>(bytes.size()));
  const Released released{view};  // nobody may look at the memory later, also after an error
  check_written(write_(view), bytes.size());
}

}  // namespace fxpress::archive
