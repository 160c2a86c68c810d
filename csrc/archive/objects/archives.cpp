#include "archive/objects/archives.h"

#include <algorithm>
#include <cstring>
#include <utility>

#include "archive/file.h"
#include "archive/transfer.h"

namespace fxpress::archive {

namespace py = pybind11;

namespace {

// Reads from a Python object with `size` and `read(begin, end)`. Several threads may read at once.
class ObjectSource final : public Source {
 public:
  explicit ObjectSource(const py::object& object)
      : read_(object.attr("read")), size_(object.attr("size").cast<uint64_t>()) {}
  uint64_t size() const override { return size_; }
  size_t piece() const override { return size_t{16} << 20; }  // each read may be a remote request
  void read(uint64_t offset, WritableBytes to) const override {
    if (offset > size_ || to.size() > size_ - offset) {
      throw ArchiveError("the file is truncated");
    }
    if (to.empty()) return;
    const AcquiredGil acquired;
    const View view(read_(offset, offset + to.size()));
    if (view.bytes().size() != to.size()) {
      raise(PyExc_OSError, "read() returned %zu bytes, expected %zu", view.bytes().size(),
            to.size());
    }
    std::memcpy(to.data(), view.bytes().data(), to.size());
  }

 private:
  py::object read_;
  uint64_t size_;
};

std::unique_ptr<Source> make_source(const py::object& source, uint64_t start, const View* view) {
  if (view != nullptr) return std::make_unique<MemorySource>(view->bytes());
  if (PyLong_Check(source.ptr())) return std::make_unique<FileSource>(source.cast<int>(), start);
  return std::make_unique<ObjectSource>(source);
}

PyObject* io = nullptr;  // the module _io; never released

constexpr size_t kCopied = size_t{1} << 20;  // bytes per copy; they fit into the processor's cache

// Returns whether `write` never keeps a reference to its argument. This holds for write() of
// BytesIO, FileIO, and a BufferedWriter or BufferedRandom whose raw file is a FileIO.
bool keeps_nothing(const py::object& write) {
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
  if (!PyLong_Check(done.ptr())) return;  // write() may return None instead of a count
  int is_too_large = 0;
  const long long taken = PyLong_AsLongLongAndOverflow(done.ptr(), &is_too_large);
  if (is_too_large != 0 || taken < 0 || static_cast<size_t>(taken) != size) {
    raise(PyExc_OSError, "expected write() to accept %zu bytes, got %R", size, done.ptr());
  }
}

// Releases `view` in its destructor.
struct Released {
  const py::memoryview& view;
  ~Released() {
    const py::error_scope error;  // saves and restores a pending Python exception
    if (PyObject* done = PyObject_CallMethod(view.ptr(), "release", nullptr)) {
      Py_DECREF(done);
    } else {
      PyErr_Clear();
    }
  }
};

// Calls a Python method write(). Passes copies of the bytes if write() may keep its argument,
// because a memoryview must not outlive the memory.
class ObjectSink final : public ByteSink {
 public:
  explicit ObjectSink(py::object write)
      : write_(std::move(write)), is_trusted_(keeps_nothing(write_)) {}
  void write(Bytes bytes) override {
    const AcquiredGil acquired;
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
    const Released released{view};  // the view must not outlive the memory
    check_written(write_(view), bytes.size());
  }

  py::object write_;
  bool is_trusted_;  // the result of keeps_nothing()
};

std::unique_ptr<ByteSink> make_sink(const py::object& target) {
  if (PyLong_Check(target.ptr())) return std::make_unique<FileSink>(target.cast<int>());
  return std::make_unique<ObjectSink>(target);
}

// Returns a function that handles signals, then calls `report(bytes)` if `report` is not None.
Progress::Report to_report(const pybind11::object& report) {
  // The caller has the GIL, so copying `report` into the lambda is safe.
  return [report](uint64_t bytes) {  // NOLINT(bugprone-exception-escape)
    const AcquiredGil acquired;
    check(PyErr_CheckSignals());
    if (!report.is_none()) report(bytes);
  };
}

}  // namespace

ArchiveReader::ArchiveReader(const py::object& source, uint64_t start)
    : view_(PyObject_CheckBuffer(source.ptr()) != 0 ? std::make_unique<View>(source) : nullptr),
      source_(make_source(source, start, view_.get())),
      directory_(*source_, dynamic_cast<ObjectSource*>(source_.get()) == nullptr
                               ? Headers::kAtOnce
                               : Headers::kOnDemand) {}

py::dict ArchiveReader::records() const {
  py::dict records;
  for (const Record& record : directory_.records()) {
    records[py::str(record.name)] =
        py::make_tuple(record.offset, record.stored, record.size, record.crc, record.is_deflated);
  }
  return records;
}

std::pair<uint64_t, uint64_t> ArchiveReader::extent(const std::string& name) const {
  const Record* found = directory_.find(name);
  if (found == nullptr) raise(PyExc_KeyError, "%s", name.c_str());
  return {found->header, found->end};
}

py::bytes ArchiveReader::stored_bytes(const std::string& name) {
  const Record& record = require(name);
  auto bytes = py::reinterpret_steal<py::bytes>(
      cpython::check(PyBytes_FromStringAndSize(nullptr, static_cast<Py_ssize_t>(record.stored))));
  copy(record, PyBytes_AS_STRING(bytes.ptr()));
  return bytes;
}

void ArchiveReader::copy_stored(const std::string& name, uint64_t size, uintptr_t address) {
  const Record& record = require(name);
  if (record.stored != size) {
    raise(PyExc_ValueError, "record '%s' has %zu bytes, but the memory to fill has %zu",
          name.c_str(), static_cast<size_t>(record.stored), static_cast<size_t>(size));
  }
  copy(record, reinterpret_cast<void*>(address));
}

std::vector<uint32_t> ArchiveReader::read_into(const std::vector<MemoryTarget>& targets, bool check,
                                               size_t threads, const py::object& report) {
  std::vector<Transfer> transfers;
  transfers.reserve(targets.size());
  for (const auto& [name, start, size, address] : targets) {
    const Record& record = require(name);
    if (record.is_deflated) raise(PyExc_ValueError, "record '%s' is compressed", name.c_str());
    if (start > record.size || size > record.size - start) {
      raise(PyExc_ValueError, "record '%s' has %zu bytes, expected %zu at offset %zu", name.c_str(),
            static_cast<size_t>(record.size), static_cast<size_t>(size),
            static_cast<size_t>(start));
    }
    transfers.push_back({&record, start, size, reinterpret_cast<std::byte*>(address)});
  }
  Progress progress(to_report(report));
  const py::gil_scoped_release release;
  return transfer(*source_, transfers, {check, threads}, progress);
}

void ArchiveReader::copy(const Record& record, void* to) const {
  const py::gil_scoped_release release;
  source_->read(record.offset, {static_cast<std::byte*>(to), record.stored});
}

const Record& ArchiveReader::require(const std::string& name) {
  const Record* found = directory_.locate(name);
  if (found == nullptr) raise(PyExc_KeyError, "%s", name.c_str());
  return *found;
}

void initialize_archives() {
  io = check(PyImport_ImportModule("_io"));
}

ArchiveWriter::ArchiveWriter(const py::object& target, std::string root, const py::object& report)
    : sink_(make_sink(target)), writer_(*sink_, std::move(root), to_report(report)) {}

void ArchiveWriter::append(const py::handle& data) {
  const View view(data);
  use([&] { writer_.append(view.bytes()); });
}

void ArchiveWriter::add_memory(const std::vector<MemoryPart>& parts) {
  use([&] {
    for (const auto& [name, whole, start, address, size] : parts) {
      if (start == 0) writer_.begin(name, whole);
      writer_.append({reinterpret_cast<const std::byte*>(address), size});
      if (start + size == whole) writer_.end();
    }
  });
}

void ArchiveWriter::add(const std::string& name, const py::handle& data) {
  const View view(data);
  use([&] {
    writer_.begin(name, view.bytes().size());
    writer_.append(view.bytes());
    writer_.end();
  });
}

}  // namespace fxpress::archive
