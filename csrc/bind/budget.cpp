// Binds the budget of a load, and the passes over a text that estimate the cost of reading it.

#include "core/budget.h"

#include <string>

#include "bind/closed_class.h"
#include "bind/convert.h"
#include "schema/json_reader.h"
#include "schema/pickle_scan.h"

namespace fxpress::bind {

namespace {

void translate_limits(std::exception_ptr pointer) {
  try {
    if (pointer) std::rethrow_exception(pointer);
  } catch (const core::LimitReached& error) {
    const auto type = py::module_::import("fxpress._serde.limits").attr("LimitError");
    const py::tuple arguments = py::make_tuple(error.limit, error.what());
    PyErr_SetObject(type.ptr(), arguments.ptr());
  }
}

// (elements, depth, whether it contains itself) of what a pickle would make.
py::tuple scan(const py::bytes& bytes, core::Budget& budget) {
  std::string problem;
  try {
    const schema::PickleFacts facts = schema::scan_pickle(std::string_view(bytes), budget);
    return py::make_tuple(facts.elements, facts.depth, facts.contains_itself);
  } catch (const schema::PickleError& error) {
    problem = error.what();
  }
  raise(PyExc_ValueError, "the pickle is refused: %s", problem.c_str());
}

}  // namespace

void bind_budget(py::module_& m) {
  py::register_exception_translator(translate_limits);
  closed_class<core::Budget>(m, "Budget")
      .def(py::init<uint64_t, size_t>())
      .def("charge", [](core::Budget& budget, uint64_t bytes) { budget.charge(bytes); })
      .def("grow", [](core::Budget& budget, uint64_t bytes) { budget.grow(bytes); })
      .def("set_place", &core::Budget::set_place)
      .def_property_readonly("used", &core::Budget::used);
  m.def("is_nested_deeper", &schema::is_nested_deeper);
  m.def("scan_pickle", &scan);
}

}  // namespace fxpress::bind
