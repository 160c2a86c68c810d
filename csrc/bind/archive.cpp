// Archives: the zip file around a program, as Python uses it.

#include <pybind11/stl.h>

#include <algorithm>
#include <memory>
#include <optional>
#include <system_error>

#include "archive/directory.h"
#include "archive/error.h"
#include "archive/transfer.h"
#include "archive/zip_writer.h"
#include "bind/closed_class.h"
#include "bind/convert.h"

namespace fxpress::bind {

namespace {

using archive::Bytes;
using archive::Progress;

// Contiguous bytes of a Python object.
class View {
 public:
  explicit View(const py::handle& object) {
    if (PyObject_GetBuffer(object.ptr(), &view_, PyBUF_SIMPLE) != 0) throw py::error_already_set();
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

// Answers Ctrl-C, and calls `report(bytes)` unless it is None.
Progress::Report to_report(const py::object& report) {
  return [report](uint64_t bytes) {
    const py::gil_scoped_acquire acquire;
    if (PyErr_CheckSignals() != 0) throw py::error_already_set();
    if (!report.is_none()) report(bytes);
  };
}

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

// An object with a method write(). Unless write() is known to keep nothing, it gets copies: it
// might keep a view of memory that is freed later.
class ObjectSink final : public archive::ByteSink {
 public:
  explicit ObjectSink(py::object write)
      : write_(std::move(write)), is_trusted_(keeps_nothing(write_)) {}
  void write(Bytes bytes) override {
    const py::gil_scoped_acquire acquire;
    if (is_trusted_) return write_view(bytes);
    for (; !bytes.empty(); bytes = bytes.subspan(std::min(bytes.size(), kCopied))) {
      const Bytes piece = bytes.first(std::min(bytes.size(), kCopied));
      check_written(write_(py::bytes(reinterpret_cast<const char*>(piece.data()), piece.size())),
                    piece.size());
    }
  }

 private:
  void write_view(Bytes bytes) {
    const auto view = py::memoryview::from_memory(bytes.data(), static_cast<ssize_t>(bytes.size()));
    const Released released{view};  // nobody may look at the memory later, also after an error
    check_written(write_(view), bytes.size());
  }
  static void check_written(const py::object& done, size_t size) {
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
  py::object write_;
  bool is_trusted_;  // see keeps_nothing()
};

// Refuses a second caller: while the GIL is released, another thread could come in.
class Busy {
 public:
  explicit Busy(bool& flag) : flag_(flag) {
    if (flag) raise(PyExc_RuntimeError, "this archive is being written by another thread");
    flag = true;
  }
  Busy(const Busy&) = delete;
  Busy& operator=(const Busy&) = delete;
  ~Busy() { flag_ = false; }

 private:
  bool& flag_;
};

class ArchiveWriter {
 public:
  // target: a descriptor, or the method write() of an object.
  ArchiveWriter(const py::object& target, std::string root, const py::object& report)
      : sink_(make_sink(target)), writer_(*sink_, std::move(root), to_report(report)) {}

  void begin(const std::string& name, uint64_t size) {
    use([&] { writer_.begin(name, size); });
  }
  void append(const py::handle& data) {
    const View view(data);
    use([&] { writer_.append(view.bytes()); });
  }
  // parts: (name, bytes of the record, start, address, bytes) of memory that stays as it is
  // meanwhile; the parts of a record come in order.
  void add_memory(
      const std::vector<std::tuple<std::string, uint64_t, uint64_t, uintptr_t, size_t>>& parts) {
    use([&] {
      for (const auto& [name, whole, start, address, size] : parts) {
        if (start == 0) writer_.begin(name, whole);
        writer_.append({reinterpret_cast<const std::byte*>(address), size});
        if (start + size == whole) writer_.end();
      }
    });
  }
  void end() {
    use([&] { writer_.end(); });
  }
  void add(const std::string& name, const py::handle& data) {
    const View view(data);
    use([&] {
      writer_.begin(name, view.bytes().size());
      writer_.append(view.bytes());
      writer_.end();
    });
  }
  void finish() {
    use([&] { writer_.finish(); });
  }
  bool has_record(const std::string& name) {
    const Busy busy(busy_);
    return writer_.has_record(name);
  }
  size_t count_records(std::string_view prefix) {
    const Busy busy(busy_);
    return writer_.count_records(prefix);
  }
  bool is_finished() {
    const Busy busy(busy_);
    return writer_.is_finished();
  }

 private:
  static std::unique_ptr<archive::ByteSink> make_sink(const py::object& target) {
    if (PyLong_Check(target.ptr())) return std::make_unique<archive::FileSink>(target.cast<int>());
    return std::make_unique<ObjectSink>(target);
  }
  template <class Use>
  void use(Use use) {
    const Busy busy(busy_);
    const py::gil_scoped_release release;
    use();
  }

  std::unique_ptr<archive::ByteSink> sink_;  // before writer_, which refers to it
  archive::ZipWriter writer_;
  bool busy_ = false;  // in a call
};

class ArchiveReader {
 public:
  // source: a descriptor, which stays open as long as the reader is used, or an object with a
  // buffer. start: where in the file the archive begins.
  ArchiveReader(const py::object& source, uint64_t start)
      : view_(PyLong_Check(source.ptr()) ? nullptr : std::make_unique<View>(source)),
        source_(make_source(source, start)),
        directory_(*source_) {}

  // name -> (offset, stored, size, crc, is_deflated)
  py::dict records() const {
    py::dict records;
    for (const archive::Record& record : directory_.records()) {
      records[py::str(record.name)] =
          py::make_tuple(record.offset, record.stored, record.size, record.crc, record.is_deflated);
    }
    return records;
  }
  // The bytes of a record as they are stored.
  py::bytes stored_bytes(const std::string& name) const {
    const archive::Record& record = require(name);
    auto bytes = py::reinterpret_steal<py::bytes>(
        PyBytes_FromStringAndSize(nullptr, static_cast<Py_ssize_t>(record.stored)));
    if (!bytes) throw py::error_already_set();
    copy(record, PyBytes_AS_STRING(bytes.ptr()));
    return bytes;
  }
  // Copies the stored bytes into memory of `size` bytes, which must be the size of the record.
  void copy_stored(const std::string& name, uint64_t size, uintptr_t address) const {
    const archive::Record& record = require(name);
    if (record.stored != size) {
      raise(PyExc_ValueError, "record '%s' has another size", name.c_str());
    }
    copy(record, reinterpret_cast<void*>(address));
  }
  // targets: (name, start, bytes, address) of memory that a part of a record goes to; address 0: it
  // is only read. The checksums of the parts, if they are wanted.
  std::vector<uint32_t> read_into(
      const std::vector<std::tuple<std::string, uint64_t, uint64_t, uintptr_t>>& targets,
      bool check, size_t threads, const py::object& report) const {
    std::vector<archive::Transfer> transfers;
    transfers.reserve(targets.size());
    for (const auto& [name, start, size, address] : targets) {
      const archive::Record& record = require(name);
      if (record.is_deflated || start > record.size || size > record.size - start) {
        raise(PyExc_ValueError, "record '%s' has another size", name.c_str());
      }
      transfers.push_back({&record, start, size, reinterpret_cast<std::byte*>(address)});
    }
    Progress progress(to_report(report));
    const py::gil_scoped_release release;
    return archive::transfer(*source_, transfers, {check, threads}, progress);
  }

 private:
  void copy(const archive::Record& record, void* to) const {
    const py::gil_scoped_release release;
    source_->read(record.offset, {static_cast<std::byte*>(to), record.stored});
  }
  std::unique_ptr<archive::Source> make_source(const py::object& source, uint64_t start) const {
    if (view_) return std::make_unique<archive::MemorySource>(view_->bytes());
    return std::make_unique<archive::FileSource>(source.cast<int>(), start);
  }
  const archive::Record& require(const std::string& name) const {
    const archive::Record* found = directory_.find(name);
    if (found == nullptr) raise(PyExc_KeyError, "%s", name.c_str());
    return *found;
  }

  std::unique_ptr<View> view_;  // of an object with a buffer
  std::unique_ptr<archive::Source> source_;
  archive::Directory directory_;
};

void translate_system_errors(std::exception_ptr pointer) {
  try {
    if (pointer) std::rethrow_exception(pointer);
  } catch (const std::system_error& error) {
    errno = error.code().value();
    PyErr_SetFromErrno(PyExc_OSError);
  }
}

}  // namespace

void bind_archive(py::module_& m) {
  py::register_exception<archive::ArchiveError>(m, "ArchiveError", PyExc_RuntimeError);
  py::register_local_exception_translator(translate_system_errors);
  closed_class<ArchiveWriter>(m, "ArchiveWriter")
      .def(py::init<py::object, std::string, py::object>(), py::arg("target"), py::arg("root"),
           py::arg("report") = py::none())
      .def("begin", &ArchiveWriter::begin)
      .def("append", &ArchiveWriter::append)
      .def("add_memory", &ArchiveWriter::add_memory)
      .def("end", &ArchiveWriter::end)
      .def("add", &ArchiveWriter::add)
      .def("finish", &ArchiveWriter::finish)
      .def("has_record", &ArchiveWriter::has_record)
      .def("count_records", &ArchiveWriter::count_records)
      .def_property_readonly("is_finished", &ArchiveWriter::is_finished);
  closed_class<ArchiveReader>(m, "ArchiveReader")
      .def(py::init<py::object, uint64_t>(), py::arg("source"), py::arg("start") = 0)
      .def("records", &ArchiveReader::records)
      .def("stored_bytes", &ArchiveReader::stored_bytes)
      .def("copy_stored", &ArchiveReader::copy_stored)
      .def("read_into", &ArchiveReader::read_into, py::arg("targets"), py::arg("check"),
           py::arg("threads"), py::arg("report") = py::none());
  m.def("crc32", [](const py::handle& data) {
    const View view(data);
    return archive::crc32(0, view.bytes());
  });
  m.def("crc32_of_both", &archive::crc32_of_both, py::arg("first"), py::arg("second"),
        py::arg("second_length"));
}

}  // namespace fxpress::bind
