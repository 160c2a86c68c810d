#include "bind/closed_class.h"
#include "bind/components.h"
#include "decompose/instantiate.h"

namespace fxpress::bind {

void bind_decompose(py::module_& m) {
  closed_class<decompose::Renamer>(m, "Renamer", "Chooses unused names for nodes.")
      .def(py::init<>(), "Start without used names.")
      .def("placeholder", &decompose::Renamer::placeholder, "name"_a, py::pos_only(),
           "Return a name for a placeholder. A number at the end of `name` is not replaced.");
  m.def(
      "write_instances",
      [](PyObject* graph, PyObject* names, PyObject* metas, PyObject* taken, PyObject* instances,
         PyObject* sizes, PyObject* readers, PyObject* roots, PyObject* size, PyObject* sequence,
         PyObject* helper) {
        return decompose::write_instances(
            {graph, names, metas, taken, instances, sizes, readers, roots, size, sequence, helper});
      },
      "graph"_a, "names"_a, "metas"_a, "taken"_a, "instances"_a, "sizes"_a, "readers"_a, "roots"_a,
      "size"_a, "sequence"_a, "helper"_a,
      "Write a decomposed program except its output node; return its nodes and the output's name.");
}

}  // namespace fxpress::bind
