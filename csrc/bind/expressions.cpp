#include <pybind11/pybind11.h>
#include <pybind11/stl.h>

#include "bind/closed_class.h"
#include "bind/convert.h"
#include "capture/text/common_subexpressions.h"

namespace fxpress::bind {

namespace py = pybind11;

void bind_expressions(py::module_& m) {
  using capture::CommonSubexpressions;
  closed_class<CommonSubexpressions>(m, "CommonSubexpressions")
      .def(py::init())
      .def("count", &CommonSubexpressions::count)
      .def("replace",
           [](CommonSubexpressions& self, capture::ExpressionId id) {
             auto replaced = self.replace(id);
             return py::make_tuple(std::move(replaced.assignments), std::move(replaced.text));
           })
      .def("count_part", &CommonSubexpressions::count_part)
      .def("is_common", &CommonSubexpressions::is_common)
      .def("variable", &CommonSubexpressions::variable)
      .def("new_variable", &CommonSubexpressions::new_variable);
}

}  // namespace fxpress::bind
