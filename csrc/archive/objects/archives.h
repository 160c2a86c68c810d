// Defines the archive reader and the archive writer of the Python bindings.
#pragma once

#include <memory>
#include <string>
#include <tuple>
#include <utility>
#include <vector>

#include "archive/crc32.h"
#include "archive/directory.h"
#include "archive/zip_writer.h"
#include "core/scoped_value.h"
#include "py/object.h"

namespace fxpress::archive {

// The contiguous bytes of a Python object.
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

// A range of a record to read: (record's name, start, bytes, destination address). With address 0,
// only the checksum of the range is computed.
using MemoryTarget = std::tuple<std::string, uint64_t, uint64_t, uintptr_t>;

// Reads records. Any number of threads may use a reader. The GIL is released while bytes are read.
class ArchiveReader {
 public:
  // source: a file descriptor, which must remain open; an object with a buffer; or an object with
  // `size` and `read(begin, end)`. start: the offset of the archive in the file of a descriptor.
  // Checks all local headers. With `read`, checks each header on the first use of its record
  // instead.
  ArchiveReader(const pybind11::object& source, uint64_t start);

  // Returns {name: (offset, stored, size, crc, is_deflated)}, the members of each Record. `offset`
  // is 0 until the record's local header has been read.
  pybind11::dict records() const;
  // Returns Record::header and Record::end of a record, without reading the source.
  std::pair<uint64_t, uint64_t> extent(const std::string& name) const;
  uint64_t offset(const std::string& name) { return require(name).offset; }
  // The bytes of a record as stored in the archive, which may be compressed.
  pybind11::bytes stored_bytes(const std::string& name);
  // Copies the stored bytes of a record to `address`. ValueError if their number is not `size`.
  void copy_stored(const std::string& name, uint64_t size, uintptr_t address);
  // Reads ranges of records into memory; returns the CRC-32 of each range if `check` is true.
  std::vector<uint32_t> read_into(const std::vector<MemoryTarget>& targets, bool check,
                                  size_t threads, const pybind11::object& report);

 private:
  void copy(const Record& record, void* to) const;
  const Record& require(const std::string& name);

  std::unique_ptr<View> view_;  // the buffer of the source; null if it has none
  std::unique_ptr<Source> source_;
  Directory directory_;
};

// A range of a record to write: (record's name, bytes of the record, start, address, bytes).
using MemoryPart = std::tuple<std::string, uint64_t, uint64_t, uintptr_t, size_t>;

// Writes records without the GIL. A call raises RuntimeError while another thread is in a call.
class ArchiveWriter {
  // Calls use() without the GIL. Raises RuntimeError while another thread is in this function.
  template <class Use>
  auto use(Use use) {
    if (busy_) raise(PyExc_RuntimeError, "this archive is being written by another thread");
    const core::ScopedValue busy(busy_, true);
    const pybind11::gil_scoped_release release;
    return use();
  }

 public:
  // target: a file descriptor, or the method write() of an object.
  ArchiveWriter(const pybind11::object& target, std::string root, const pybind11::object& report);

  void begin(const std::string& name, uint64_t size) {
    use([&] { writer_.begin(name, size); });
  }
  void append(const pybind11::handle& data);
  // Writes parts of records, in order. The parts' memory must stay valid until this function ends.
  void add_memory(const std::vector<MemoryPart>& parts);
  void end() {
    use([&] { writer_.end(); });
  }
  void add(const std::string& name, const pybind11::handle& data);
  void finish() {
    use([&] { writer_.finish(); });
  }
  bool has_record(const std::string& name) {
    return use([&] { return writer_.has_record(name); });
  }
  size_t count_records(std::string_view prefix) {
    return use([&] { return writer_.count_records(prefix); });
  }
  bool is_finished() {
    return use([&] { return writer_.is_finished(); });
  }

 private:
  std::unique_ptr<ByteSink> sink_;  // declared before writer_, which contains a reference to it
  ZipWriter writer_;
  bool busy_ = false;  // whether a thread is in use()
};

// Imports the module _io; must be called before the first writer is created.
void initialize_archives();

}  // namespace fxpress::archive
