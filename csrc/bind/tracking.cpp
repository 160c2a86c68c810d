#include "bind/components.h"
#include "tracking/lookup.h"

namespace fxpress::bind {

void bind_tracking(py::module_& m) {
  m.def(
      "class_attribute",
      [](PyObject* type, PyObject* name, PyObject* missing) {
        Ref found = tracking::class_attribute(type, name);
        return found ? std::move(found) : Ref::borrow(missing);
      },
      "type"_a, "name"_a, "missing"_a, py::pos_only(),
      "Return the class's attribute, as CPython finds it; `missing` if it does not have one.");
  m.def("has_empty_tables", &tracking::has_empty_tables, "module"_a, "names"_a, py::pos_only(),
        "Return whether these attributes are empty plain dicts of the object itself.");
  m.def("has_plain_tables", &tracking::has_plain_tables, "namespace"_a, "names"_a, py::pos_only(),
        "Return whether these values are dicts, and not of a subclass.");
  m.def("path_without_tables", &tracking::path_without_tables, "path"_a, py::pos_only(),
        "Return `L['m']._modules['a'].b` as `L['m'].a.b`, likewise for parameters and buffers.");
}

}  // namespace fxpress::bind
