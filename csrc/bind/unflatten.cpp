#include "unflatten/unflatten.h"

#include <pybind11/stl.h>

#include "bind/closed_class.h"
#include "bind/components.h"
#include "unflatten/source.h"

namespace fxpress::bind {

void bind_unflatten(py::module_& m) {
  using unflatten::ProgramState;
  closed_class<ProgramState>(m, "ProgramState",
                             R"(The values for the names of a program's state.

They are in the order in which torch assigns them. Values of one group are one object or see the
same data. Unless `copies_unused`, values that share no data with an input of the graph are not
copied.

Raises:
    KeyError: the specs name state that does not exist.
    AssertionError: specs or constants that an export does not write.)")
      .def(py::init(&unflatten::program_state), py::kw_only(), "names"_a, "values"_a,
           "constants_begin"_a, "groups"_a, "specs"_a, "check_constant"_a, "copies_unused"_a,
           "Take names and values; those from `constants_begin` on are constants.")
      .def("wanted", unflatten::wanted_values,
           "Return the values to copy, and whether each copy is a parameter.")
      .def(
          "fill", [](ProgramState& state, const py::list& copies) { state.fill(copies.ptr()); },
          "copies"_a, py::pos_only(), "Take the copies.");
  m.def(
      "unflatten",
      [](const py::dict& source, const py::handle& root) {
        return unflatten::to_tuple(
            unflatten::unflatten(unflatten::read_source(source), root.ptr()));
      },
      "source"_a, "root"_a, py::pos_only(),
      "Fill `root`. Return its class, and (node, paths, number of cut paths) for each cut stack.");
  m.def(
      "outline_submodules",
      [](const py::dict& source, const py::handle& root) {
        return unflatten::to_tuple(
            unflatten::outline_submodules(unflatten::read_source(source), root.ptr()));
      },
      "source"_a, "root"_a, py::pos_only(),
      R"(Outline into `root`, and return its calls and attributes.

A call is a module id and the fields of `_SubmoduleEntry`. An attribute is the call name, target and
module of a get_attr node.)");
}

}  // namespace fxpress::bind
