#include "bind/components.h"
#include "bind/entries.h"
#include "export/unlift.h"

namespace fxpress::bind {

void bind_export(py::module_& m) {
  m.def(
      "unlift",
      [](const py::dict& source) {
        const exporting::UnliftSource fields = {entry(source, "graph"),
                                                entry(source, "origin"),
                                                entry<py::list>(source, "taken"),
                                                entry(source, "into"),
                                                entry<py::list>(source, "lifted"),
                                                entry<py::list>(source, "outputs"),
                                                entry<py::list>(source, "written"),
                                                entry(source, "owner"),
                                                entry<py::dict>(source, "state"),
                                                entry<py::type>(source, "module_class"),
                                                source["drop_dead_code"].cast<bool>(),
                                                provenance_rules(source, "created"),
                                                provenance_rules(source, "replaced")};
        return exporting::unlift(fields);
      },
      "source"_a, py::pos_only(),
      R"(Write the graph of an exported program's module, and return the module.

`source` has the fields of `UnliftSource` in csrc/export/unlift.h.

Raises:
    AssertionError, RuntimeError: the lists do not fit the graph.
    AttributeError: the program's module lacks an attribute that its graph names.
    KeyError: a node is used before it is defined.)");
}

}  // namespace fxpress::bind
