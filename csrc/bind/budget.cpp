// Binds core::Budget, and functions that estimate the cost of reading a pickle or JSON text.

#include "core/budget.h"

#include <utility>

#include "bind/closed_class.h"
#include "bind/components.h"
#include "schema/json_reader.h"
#include "schema/pickle_scan.h"
#include "serde/symbols.h"

namespace fxpress::bind {

namespace {

void translate_limits(std::exception_ptr pointer) {
  try {
    if (pointer) std::rethrow_exception(std::move(pointer));
  } catch (const core::LimitReached& error) {
    if (!serde::has_torch()) return PyErr_SetString(PyExc_ValueError, error.what());
    const auto type = py::module_::import("fxpress._files.serde.limits").attr("LimitError");
    const py::tuple arguments = py::make_tuple(error.limit, error.what());
    PyErr_SetObject(type.ptr(), arguments.ptr());
  }
}

// Returns (elements, depth, whether the value contains itself) of the value in a pickle.
py::tuple scan(const py::bytes& bytes, core::Budget& budget) {
  try {
    const schema::PickleFacts facts = schema::scan_pickle(std::string_view(bytes), budget);
    return py::make_tuple(facts.elements, facts.depth, facts.contains_itself);
  } catch (const schema::PickleError& error) {
    raise(PyExc_ValueError, "the pickle is rejected: %s", error.what());
  }
}

}  // namespace

void bind_budget(py::module_& m) {
  py::register_exception_translator(translate_limits);
  closed_class<core::Budget>(
      m, "Budget",
      "The memory in bytes and the depth that a load may use; exceeding a limit raises LimitError.")
      .def(py::init<uint64_t, size_t>(), "memory"_a, "depth"_a, py::pos_only(),
           "Allow `memory` bytes and `depth` levels of nesting.")
      .def("charge", py::overload_cast<uint64_t>(&core::Budget::charge), "bytes"_a, py::pos_only(),
           "Count bytes as used.")
      .def("grow", &core::Budget::grow, "bytes"_a, py::pos_only(),
           "Allow more bytes, for a file that is larger than was known.")
      .def("set_place", &core::Budget::set_place, "place"_a, py::pos_only(),
           "Set the part of the file that errors name from now on.")
      .def_property_readonly("used", &core::Budget::used, "The number of bytes charged so far.");
  m.def("is_nested_deeper", &schema::is_nested_deeper, "text"_a, "depth"_a, py::pos_only(),
        "Return whether brackets of a JSON text are nested deeper than `depth`.");
  m.def("scan_pickle", &scan, "data"_a, "budget"_a, py::pos_only(),
        "Return (elements, depth, whether the value contains itself) of the value of a pickle.");
}

}  // namespace fxpress::bind
