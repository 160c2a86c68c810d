#include "bind/components.h"
#include "bind/entries.h"
#include "capture/rewrite.h"

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

}  // namespace

void bind_capture(py::module_& m) {
  m.attr("CAPTURED_OUTPUT_KINDS") = texts(capture::kCapturedOutputNames);
  m.def(
      "rewrite_captured",
      [](const py::handle& module, const py::list& inputs, const py::list& places,
         const py::list& outputs, const py::dict& module_paths, const py::dict& birth) {
        const capture::RewritePlan plan = {Ref::borrow(inputs.ptr()), Ref::borrow(places.ptr()),
                                           Ref::borrow(outputs.ptr()),
                                           Ref::borrow(module_paths.ptr()), birth_rules(birth)};
        return to_object(capture::rewrite_captured(module.ptr(), plan));
      },
      "module"_a, "inputs"_a, "places"_a, "outputs"_a, "module_paths"_a, "birth"_a,
      R"(Return a captured module with other inputs and outputs.

Args:
    module: the GraphModule that Dynamo captured.
    inputs: the meta of each flat input's placeholder.
    places: for each placeholder of the module: the position of the input that it is, the name of
        the attribute that it becomes, or None where it stays a placeholder.
    outputs: a kind (a position in CAPTURED_OUTPUT_KINDS) and its value, for each output.
    module_paths: the path of the module that each call_module calls, by target.
    birth: the rules for the metadata of new nodes, by name.

Raises:
    IndexError, KeyError, ValueError: the plan does not fit the graph.)");
  m.def(
      "clean_name",
      [](const py::handle& name) { return to_object(capture::clean_name(name.ptr())); }, "name"_a,
      "Return a name without the module around the callable; AttributeError if it is no str.");
  m.def(
      "clean_stacks",
      [](const py::handle& graph, bool drop_self) {
        capture::clean_stacks(graph.ptr(), drop_self);
      },
      "graph"_a, "drop_self"_a, "Clean the nn_module_stack and the source_fn_stack of all nodes.");
}

}  // namespace fxpress::bind
