// A writer of archives, as Python uses it.
#pragma once

#include <memory>
#include <string>
#include <tuple>
#include <vector>

#include "archive/zip_writer.h"
#include "py/object.h"

namespace fxpress::archive {

// A part of a record in memory: (name, bytes of the record, start, address, bytes).
using MemoryPart = std::tuple<std::string, uint64_t, uint64_t, uintptr_t, size_t>;

// The GIL is released while bytes are written. Refuses a second caller meanwhile: RuntimeError.
class ArchiveWriter {
 public:
  // target: a descriptor, or the method write() of an object.
  ArchiveWriter(const pybind11::object& target, std::string root, const pybind11::object& report);

  void begin(const std::string& name, uint64_t size);
  void append(const pybind11::handle& data);
  // The memory stays as it is meanwhile. The parts of a record come in order.
  void add_memory(const std::vector<MemoryPart>& parts);
  void end();
  void add(const std::string& name, const pybind11::handle& data);
  void finish();
  bool has_record(const std::string& name);
  size_t count_records(std::string_view prefix);
  bool is_finished();

 private:
  template <class Use>
  void use(Use use);

  std::unique_ptr<ByteSink> sink_;  // before writer_, which refers to it
  ZipWriter writer_;
  bool busy_ = false;  // in a call
};

}  // namespace fxpress::archive
