#include "archive/objects/reader.h"

#include "archive/objects/report.h"
#include "archive/transfer.h"

namespace fxpress::archive {

namespace py = pybind11;

ArchiveReader::ArchiveReader(const py::object& source, uint64_t start)
    : view_(PyLong_Check(source.ptr()) ? nullptr : std::make_unique<View>(source)),
      source_(make_source(source, start)),
      directory_(*source_) {}

py::dict ArchiveReader::records() const {
  py::dict records;
  for (const Record& record : directory_.records()) {
    records[py::str(record.name)] =
        py::make_tuple(record.offset, record.stored, record.size, record.crc, record.is_deflated);
  }
  return records;
}

py::bytes ArchiveReader::stored_bytes(const std::string& name) const {
  const Record& record = require(name);
  auto bytes = py::reinterpret_steal<py::bytes>(
      cpython::check(PyBytes_FromStringAndSize(nullptr, static_cast<Py_ssize_t>(record.stored))));
  copy(record, PyBytes_AS_STRING(bytes.ptr()));
  return bytes;
}

void ArchiveReader::copy_stored(const std::string& name, uint64_t size, uintptr_t address) const {
  const Record& record = require(name);
  if (record.stored != size) {
    raise(PyExc_ValueError, "record '%s' has another size", name.c_str());
  }
  copy(record, reinterpret_cast<void*>(address));
}

std::vector<uint32_t> ArchiveReader::read_into(const std::vector<MemoryTarget>& targets, bool check,
                                               size_t threads, const py::object& report) const {
  std::vector<Transfer> transfers;
  transfers.reserve(targets.size());
  for (const auto& [name, start, size, address] : targets) {
    const Record& record = require(name);
    if (record.is_deflated || start > record.size || size > record.size - start) {
      raise(PyExc_ValueError, "record '%s' has another size", name.c_str());
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

std::unique_ptr<Source> ArchiveReader::make_source(const py::object& source, uint64_t start) const {
  if (view_) return std::make_unique<MemorySource>(view_->bytes());
  return std::make_unique<FileSource>(source.cast<int>(), start);
}

const Record& ArchiveReader::require(const std::string& name) const {
  const Record* found = directory_.find(name);
  if (found == nullptr) raise(PyExc_KeyError, "%s", name.c_str());
  return *found;
}

}  // namespace fxpress::archive
