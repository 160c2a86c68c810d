#include <pybind11/stl.h>

#include <optional>
#include <system_error>
#include <utility>

#include "archive/file.h"
#include "archive/objects/archives.h"
#include "archive/record_name.h"
#include "bind/closed_class.h"
#include "bind/components.h"
#include "core/extent.h"

namespace fxpress::bind {

using archive::ArchiveReader;
using archive::ArchiveWriter;

namespace {

void translate_system_errors(std::exception_ptr pointer) {
  try {
    if (pointer) std::rethrow_exception(std::move(pointer));
  } catch (const std::system_error& error) {
    errno = error.code().value();
    PyErr_SetFromErrno(PyExc_OSError);
  }
}

// Converts Python ints to int64. Returns nullopt if an int does not fit.
std::optional<std::vector<int64_t>> numbers_of(const py::sequence& ints) {
  std::vector<int64_t> numbers;
  numbers.reserve(ints.size());
  for (const py::handle each : ints) {
    int overflow = 0;
    numbers.push_back(PyLong_AsLongLongAndOverflow(each.ptr(), &overflow));
    if (numbers.back() == -1 && PyErr_Occurred() != nullptr) throw py::error_already_set();
    if (overflow != 0) return std::nullopt;
  }
  return numbers;
}

std::optional<uint64_t> bytes_needed(const py::sequence& sizes, const py::sequence& strides,
                                     const py::int_& offset, uint64_t item) {
  const auto all_sizes = numbers_of(sizes);
  const auto all_strides = numbers_of(strides);
  const auto start = numbers_of(py::make_tuple(offset));
  if (!all_sizes || !all_strides || !start || all_sizes->size() != all_strides->size()) {
    return std::nullopt;
  }
  return core::bytes_needed(*all_sizes, *all_strides, start->front(), item);
}

uint32_t crc32(const py::handle& data) {
  return archive::crc32(0, archive::View(data).bytes());
}

}  // namespace

void bind_archive(py::module_& m) {
  archive::initialize_archives();
  py::register_exception<archive::ArchiveError>(m, "ArchiveError", PyExc_RuntimeError).doc() =
      "An archive is damaged, or a call does not fit the state of its writer.";
  py::register_local_exception_translator(translate_system_errors);
  closed_class<ArchiveWriter>(
      m, "ArchiveWriter",
      "A writer of zip files like torch's PyTorchFileWriter; for one thread at a time.")
      .def(py::init<py::object, std::string, py::object>(), "target"_a, "root"_a,
           "report"_a = py::none(),
           "Write to a descriptor or by a method write(); calls report(bytes) every 50 ms.")
      .def("begin", &ArchiveWriter::begin, "name"_a, "size"_a, py::pos_only(),
           "Begin a record of `size` bytes.")
      .def("append", &ArchiveWriter::append, "data"_a, py::pos_only(),
           "Append a buffer's bytes to the open record.")
      .def("add_memory", &ArchiveWriter::add_memory, "parts"_a, py::pos_only(),
           "Write memory as records: (name, bytes of the record, start, address, bytes).")
      .def("end", &ArchiveWriter::end, "End the open record.")
      .def("add", &ArchiveWriter::add, "name"_a, "data"_a, py::pos_only(),
           "Write a buffer's bytes as a record.")
      .def("finish", &ArchiveWriter::finish, "Write the directory, which ends the file.")
      .def("has_record", &ArchiveWriter::has_record, "name"_a, py::pos_only(),
           "Return whether a record with this name has begun.")
      .def("count_records", &ArchiveWriter::count_records, "prefix"_a, py::pos_only(),
           "Return the number of records whose names start with a prefix.")
      .def_property_readonly("is_finished", &ArchiveWriter::is_finished,
                             "Whether the directory was written.");
  closed_class<ArchiveReader>(
      m, "ArchiveReader",
      "A reader of a zip file's directory and records; any number of threads may use it.")
      .def(
          py::init<py::object, uint64_t>(), "source"_a, "start"_a = 0,
          R"(Read from a descriptor or a buffer, or by `source.read(begin, end)` of `source.size` bytes.

`start` is the offset at which the archive begins in the file of a descriptor. `read` is called for
the directory, and for the header of a record when the record is first used.)")
      .def("records", &ArchiveReader::records,
           R"(Return name -> (offset, stored, size, crc, is_deflated), in the directory's order.

`offset` is where the data begins; 0 until the record's header has been read.)")
      .def("extent", &ArchiveReader::extent, "name"_a, py::pos_only(),
           "Return the offset of a record's header, and of the header or directory after its data.")
      .def("offset", &ArchiveReader::offset, "name"_a, py::pos_only(),
           "Return the offset of a record's data; reads the record's header.")
      .def("stored_bytes", &ArchiveReader::stored_bytes, "name"_a, py::pos_only(),
           "Return a record's bytes as they are stored.")
      .def("copy_stored", &ArchiveReader::copy_stored, "name"_a, "size"_a, "address"_a,
           py::pos_only(),
           "Copy a record's stored bytes into memory; ValueError unless they are `size` bytes.")
      .def("read_into", &ArchiveReader::read_into, "targets"_a, "check"_a, "threads"_a,
           "report"_a = py::none(),
           "Fill memory with parts of records (name, start, bytes, address); return checksums.");
  m.attr("RECORDS_OF_WRITER") = texts(archive::kRecordsOfWriter);
  m.def("crc32", crc32, "data"_a, py::pos_only(), "Return the CRC-32 of a buffer's bytes.");
  m.def("bytes_needed", bytes_needed, "sizes"_a, "strides"_a, "offset"_a, "itemsize"_a,
        py::pos_only(),
        R"(Return the bytes that a storage needs for a view, including the bytes before its offset.

Return None if a number is negative or too large, or if there are not as many strides as sizes.)");
  m.def("crc32_of_both", &archive::crc32_of_both, "first"_a, "second"_a, "second_length"_a,
        "Return the CRC-32 of two concatenated pieces from the CRC-32 of each.");
}

}  // namespace fxpress::bind
