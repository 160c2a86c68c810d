#include "capture/text/expressions.h"

#include <pybind11/stl.h>

#include "bind/closed_class.h"
#include "bind/components.h"

namespace fxpress::bind {

void bind_expressions(py::module_& m) {
  using capture::CommonSubexpressions;
  closed_class<CommonSubexpressions>(m, "CommonSubexpressions",
                                     R"(The common subexpressions of Python expressions.

`count` must be called for all expressions before the first `replace`.)")
      .def(py::init(), "Begin without an expression.")
      .def("count", &CommonSubexpressions::count, "text"_a, py::pos_only(),
           "Count an expression's parts. Return its number; None where it cannot be parsed here.")
      .def(
          "replace",
          [](CommonSubexpressions& self, capture::ExpressionId id) {
            auto replaced = self.replace(id);
            return py::make_tuple(std::move(replaced.assignments), std::move(replaced.text));
          },
          "expression"_a, py::pos_only(),
          "Return the assignments of new variables, and the text that uses variables.")
      .def("count_part", &CommonSubexpressions::count_part, "text"_a, py::pos_only(),
           "Count a part that Python has printed.")
      .def("is_common", &CommonSubexpressions::is_common, "text"_a, py::pos_only(),
           "Return whether a part was counted more than once.")
      .def("variable", &CommonSubexpressions::variable, "text"_a, py::pos_only(),
           "Return the variable of a part; None where it has none.")
      .def("new_variable", &CommonSubexpressions::new_variable, "text"_a, py::pos_only(),
           "Return a new variable for a part.");
}

}  // namespace fxpress::bind
