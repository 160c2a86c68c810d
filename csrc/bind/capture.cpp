#include <string>

#include "bind/convert.h"
#include "capture/clean.h"
#include "capture/rewrite.h"

namespace fxpress::bind {

namespace {

template <class Type = py::object>
Ref entry(const py::dict& dict, const char* key) {
  const py::object value = dict[key];
  if (!py::isinstance<Type>(value)) throw py::type_error(std::string("wrong type of ") + key);
  return Ref::borrow(value.ptr());
}

capture::BirthRules birth_rules(const py::dict& rules) {
  return {entry<py::tuple>(rules, "fields"),  entry<py::dict>(rules, "outer"),
          entry(rules, "sequence"),           entry<py::dict>(rules, "overlay"),
          entry<py::str>(rules, "marker"),    entry<py::dict>(rules, "provenance"),
          entry<py::type>(rules, "source"),   entry<py::type>(rules, "source_info"),
          entry<py::function>(rules, "copy"), entry<py::function>(rules, "deepcopy")};
}

}  // namespace

void bind_capture(py::module_& m) {
  m.attr("CAPTURED_OUTPUT_KINDS") = texts(capture::kOutputKindNames);
  m.def("rewrite_captured",
        [](const py::handle& module, const py::list& inputs, const py::list& places,
           const py::list& outputs, const py::dict& module_paths, const py::dict& birth) {
          const capture::RewritePlan plan = {Ref::borrow(inputs.ptr()), Ref::borrow(places.ptr()),
                                             Ref::borrow(outputs.ptr()),
                                             Ref::borrow(module_paths.ptr()), birth_rules(birth)};
          return to_object(capture::rewrite_captured(module.ptr(), plan));
        });
  m.def("clean_name",
        [](const py::handle& name) { return to_object(capture::clean_name(name.ptr())); });
  m.def("clean_stacks", [](const py::handle& graph, bool drop_self) {
    capture::clean_stacks(graph.ptr(), drop_self);
  });
}

}  // namespace fxpress::bind
