#include "bind/components.h"
#include "tracking/lookup.h"

namespace fxpress::bind {

void bind_tracking(py::module_& m) {
  m.def(
      "class_attribute",
      [](const py::handle& type, const py::handle& name, const py::handle& missing) {
        Ref found = tracking::class_attribute(type.ptr(), name.ptr());
        return found ? to_object(std::move(found)) : py::reinterpret_borrow<py::object>(missing);
      },
      "type"_a, "name"_a, "missing"_a, py::pos_only(),
      "Return the class's attribute, as CPython finds it; `missing` where it has none.");
  m.def(
      "has_empty_tables",
      [](const py::handle& module, const py::handle& names) {
        return tracking::has_empty_tables(module.ptr(), names.ptr());
      },
      "module"_a, "names"_a, py::pos_only(),
      "Return whether these attributes are empty plain dicts of the object itself.");
  m.def(
      "has_plain_tables",
      [](const py::handle& ns, const py::handle& names) {
        return tracking::has_plain_tables(ns.ptr(), names.ptr());
      },
      "namespace"_a, "names"_a, py::pos_only(),
      "Return whether all of these values are dicts, and not of a subclass.");
  m.def(
      "path_without_tables",
      [](const py::handle& path) { return to_object(tracking::path_without_tables(path.ptr())); },
      "path"_a, py::pos_only(),
      "Return `L['m']._modules['a'].b` as `L['m'].a.b`, likewise for parameters and buffers.");
}

}  // namespace fxpress::bind
