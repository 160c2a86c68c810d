#include <pybind11/stl.h>

#include "bind/closed_class.h"
#include "bind/components.h"
#include "bind/entries.h"
#include "capture/rewrite.h"
#include "capture/text/expressions.h"

namespace fxpress::bind {

namespace {

capture::BirthRules birth_rules(const py::dict& rules) {
  return {entry<py::tuple>(rules, "fields"),
          entry<py::dict>(rules, "outer"),
          entry(rules, "sequence"),
          entry<py::dict>(rules, "overlay"),
          entry<py::str>(rules, "marker"),
          entry<py::function>(rules, "copy"),
          provenance_rules(rules, "provenance")};
}

void bind_expressions(py::module_& m) {
  using capture::CommonSubexpressions;
  closed_class<CommonSubexpressions>(m, "CommonSubexpressions",
                                     R"(Finds the common subexpressions of Python expressions.

`count` must be called for all expressions before the first `replace`.)")
      .def(py::init(), "Create an object that has counted no expression.")
      .def("count", &CommonSubexpressions::count, "text"_a, py::pos_only(),
           "Count an expression's parts; return its id, or None if only Python can parse it.")
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
           "Return the variable that replaces a part, or None.")
      .def("new_variable", &CommonSubexpressions::new_variable, "text"_a, py::pos_only(),
           "Return a new variable for a part.");
}

}  // namespace

void bind_capture(py::module_& m) {
  bind_expressions(m);
  m.attr("CAPTURED_OUTPUT_KINDS") = texts(capture::kCapturedOutputNames);
  m.def("clean_name", capture::clean_name, "name"_a,
        "Return a name without the module around the callable; AttributeError if it is not a str.");
}

void bind_captured_graphs(py::module_& m) {
  m.def(
      "rewrite_captured",
      [](PyObject* module, const py::list& inputs, const py::list& places, const py::list& outputs,
         const py::dict& module_paths, const py::dict& birth) {
        const capture::RewritePlan plan = {Ref::borrow(inputs.ptr()), Ref::borrow(places.ptr()),
                                           Ref::borrow(outputs.ptr()),
                                           Ref::borrow(module_paths.ptr()), birth_rules(birth)};
        return capture::rewrite_captured(module, plan);
      },
      "module"_a, "inputs"_a, "places"_a, "outputs"_a, "module_paths"_a, "birth"_a,
      R"(Return a captured module with other inputs and outputs.

Args:
    module: the GraphModule that Dynamo captured.
    inputs: the meta of each flat input's placeholder.
    places: what each placeholder of the module becomes: an input (its position), an attribute (its
        name), or a placeholder as before (None).
    outputs: a kind (a position in CAPTURED_OUTPUT_KINDS) and its value, for each output.
    module_paths: the path of the module that each call_module calls, by target.
    birth: the rules for the metadata of new nodes, by name.

Raises:
    IndexError, KeyError, ValueError: the plan does not fit the graph.)");
  m.def("clean_stacks", capture::clean_stacks, "graph"_a, "drop_self"_a,
        "Clean the nn_module_stack and the source_fn_stack of all nodes.");
}

}  // namespace fxpress::bind
