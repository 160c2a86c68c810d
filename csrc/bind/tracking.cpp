#include "bind/convert.h"
#include "tracking/lookup.h"

namespace fxpress::bind {

void bind_tracking(py::module_& m) {
  m.def("class_attribute",
        [](const py::handle& type, const py::handle& name, const py::handle& missing) {
          Ref found = tracking::class_attribute(type.ptr(), name.ptr());
          return found ? to_object(std::move(found)) : py::reinterpret_borrow<py::object>(missing);
        });
  m.def("has_empty_tables", [](const py::handle& module, const py::handle& names) {
    return tracking::has_empty_tables(module.ptr(), names.ptr());
  });
  m.def("has_plain_tables", [](const py::handle& ns, const py::handle& names) {
    return tracking::has_plain_tables(ns.ptr(), names.ptr());
  });
  m.def("path_without_tables", [](const py::handle& path) {
    return to_object(tracking::path_without_tables(path.ptr()));
  });
}

}  // namespace fxpress::bind
