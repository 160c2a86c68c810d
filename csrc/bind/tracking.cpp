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
      "Return an attribute of a class, as CPython finds it; `missing` if the class lacks it.");
  m.def("has_empty_tables", &tracking::has_empty_tables, "module"_a, "names"_a, py::pos_only(),
        "Return whether `names` are empty plain dicts in the module's __dict__.");
  m.def("has_plain_tables", &tracking::has_plain_tables, "namespace"_a, "names"_a, py::pos_only(),
        "Return whether `names` are dicts in a namespace, and not of a subclass.");
  m.def("path_without_tables", &tracking::path_without_tables, "path"_a, py::pos_only(),
        "Return `L['m']._modules['a'].b` as `L['m'].a.b`, likewise for parameters and buffers.");
}

}  // namespace fxpress::bind
