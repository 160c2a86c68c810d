#include "archive/objects/writer.h"

#include "archive/objects/object_sink.h"
#include "archive/objects/report.h"
#include "archive/objects/view.h"

namespace fxpress::archive {

namespace py = pybind11;

namespace {

// Refuses a second caller: while the GIL is released, another thread could come in.
class WriterInUse {
 public:
  explicit WriterInUse(bool& flag) : flag_(flag) {
    if (flag) raise(PyExc_RuntimeError, "this archive is being written by another thread");
    flag = true;
  }
  WriterInUse(const WriterInUse&) = delete;
  WriterInUse& operator=(const WriterInUse&) = delete;
  ~WriterInUse() { flag_ = false; }

 private:
  bool& flag_;
};

std::unique_ptr<ByteSink> make_sink(const py::object& target) {
  if (PyLong_Check(target.ptr())) return std::make_unique<FileSink>(target.cast<int>());
  return std::make_unique<ObjectSink>(target);
}

}  // namespace

ArchiveWriter::ArchiveWriter(const py::object& target, std::string root, const py::object& report)
    : sink_(make_sink(target)), writer_(*sink_, std::move(root), to_report(report)) {}

template <class Use>
void ArchiveWriter::use(Use use) {
  const WriterInUse in_use(busy_);
  const py::gil_scoped_release release;
  use();
}

void ArchiveWriter::begin(const std::string& name, uint64_t size) {
  use([&] { writer_.begin(name, size); });
}

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

void ArchiveWriter::end() {
  use([&] { writer_.end(); });
}

void ArchiveWriter::add(const std::string& name, const py::handle& data) {
  const View view(data);
  use([&] {
    writer_.begin(name, view.bytes().size());
    writer_.append(view.bytes());
    writer_.end();
  });
}

void ArchiveWriter::finish() {
  use([&] { writer_.finish(); });
}

bool ArchiveWriter::has_record(const std::string& name) {
  const WriterInUse in_use(busy_);
  return writer_.has_record(name);
}

size_t ArchiveWriter::count_records(std::string_view prefix) {
  const WriterInUse in_use(busy_);
  return writer_.count_records(prefix);
}

bool ArchiveWriter::is_finished() {
  const WriterInUse in_use(busy_);
  return writer_.is_finished();
}

}  // namespace fxpress::archive
