// Progress that is reported to Python.
#pragma once

#include "archive/progress.h"
#include "py/object.h"

namespace fxpress::archive {

// Answers Ctrl-C, and calls `report(bytes)` unless it is None.
inline Progress::Report to_report(const pybind11::object& report) {
  // pybind11 counts references with the GIL alone, which is held.
  return [report](uint64_t bytes) {  // NOLINT(bugprone-exception-escape)
    const pybind11::gil_scoped_acquire acquire;
    check(PyErr_CheckSignals());
    if (!report.is_none()) report(bytes);
  };
}

}  // namespace fxpress::archive
