// Sends an archive's bytes to an object of Python.
#pragma once

#include "archive/file.h"
#include "py/object.h"

namespace fxpress::archive {

// An object's method write(). Unless write() is known to keep nothing, it gets copies: it might
// keep a view of memory that is freed later.
class ObjectSink final : public ByteSink {
 public:
  explicit ObjectSink(pybind11::object write);
  void write(Bytes bytes) override;

 private:
  void write_view(Bytes bytes);

  pybind11::object write_;
  bool is_trusted_;  // see keeps_nothing()
};

}  // namespace fxpress::archive
