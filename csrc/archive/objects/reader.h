// A reader of archives, as Python uses it.
#pragma once

#include <memory>
#include <string>
#include <tuple>
#include <vector>

#include "archive/directory.h"
#include "archive/objects/view.h"
#include "py/object.h"

namespace fxpress::archive {

// Memory that a part of a record goes to: (name, start, bytes, address). Address 0: the part is
// read and goes nowhere.
using MemoryTarget = std::tuple<std::string, uint64_t, uint64_t, uintptr_t>;

// Any number of threads may use it. The GIL is released while bytes are read.
class ArchiveReader {
 public:
  // source: a descriptor, which stays open as long as the reader is used, or an object with a
  // buffer. start: where in the file the archive begins.
  ArchiveReader(const pybind11::object& source, uint64_t start);

  // name -> (offset, stored, size, crc, is_deflated)
  pybind11::dict records() const;
  // The bytes of a record as they are stored.
  pybind11::bytes stored_bytes(const std::string& name) const;
  // Copies the stored bytes into memory of `size` bytes, which must be the size of the record.
  void copy_stored(const std::string& name, uint64_t size, uintptr_t address) const;
  // The checksums of the parts, if they are wanted.
  std::vector<uint32_t> read_into(const std::vector<MemoryTarget>& targets, bool check,
                                  size_t threads, const pybind11::object& report) const;

 private:
  void copy(const Record& record, void* to) const;
  std::unique_ptr<Source> make_source(const pybind11::object& source, uint64_t start) const;
  const Record& require(const std::string& name) const;

  std::unique_ptr<View> view_;  // of an object with a buffer
  std::unique_ptr<Source> source_;
  Directory directory_;
};

}  // namespace fxpress::archive
