// Defines the module fxpress._native: adds the bindings of all components, and translates errors.

#include <utility>

#include "bind/components.h"
#include "core/check.h"
#include "fx/descriptors.h"
#include "fx/symbols.h"

namespace fxpress::bind {

namespace {

py::dict build_info() {
  py::dict info;
  info["version"] = FXPRESS_VERSION;
  info["compiler"] = __VERSION__;
  info["cplusplus"] = __cplusplus;
  info["build_type"] = FXPRESS_BUILD_TYPE;
  info["pybind11"] = PYBIND11_TOSTRING(PYBIND11_VERSION_MAJOR) "." PYBIND11_TOSTRING(
      PYBIND11_VERSION_MINOR) "." PYBIND11_TOSTRING(PYBIND11_VERSION_MICRO);
  info["python"] = PY_VERSION;
  return info;
}

void translate_internal_errors(std::exception_ptr pointer) {
  try {
    if (pointer) std::rethrow_exception(std::move(pointer));
  } catch (const core::InternalError& error) {
    PyObject* type = fx::symbols.internal_error;  // null before initialize() has run
    PyErr_SetString(type != nullptr ? type : PyExc_RuntimeError, error.what());
  }
}

}  // namespace

PYBIND11_MODULE(_native, m) {
  m.doc() = "fxpress: graphs and torch.fx objects, without libtorch.";
  py::register_exception_translator(translate_internal_errors);
  m.def("build_info", build_info,
        "Return the versions of fxpress, the compiler, pybind11 and Python.");
  bind_archive(m);
  bind_budget(m);
  bind_capture(m);
  bind_documents(m);
  bind_tracking(m);
  bind_process(m);
  // initialize() fills the tables of torch's objects. Then it adds the functions on graphs, which
  // need these tables.
  m.def(
      "initialize",
      [](const py::dict& objects) {
        fx::initialize_symbols(objects.ptr());
        auto self = py::module_::import("fxpress._native");
        self.attr("tables") = py::cast(fx::make_tables_capsule());
        bind_captured_graphs(self);
        bind_decompose(self);
        bind_export(self);
        bind_graphs(self);
        bind_serde(self);
        bind_split(self);
        bind_unflatten(self);
      },
      "objects"_a, "Fill the tables of torch.fx's objects, and add the functions on graphs.");
  m.attr("ComputedAttribute") = py::cast(fx::make_computed_attribute_type());
  m.attr("DeferredAttribute") = py::cast(fx::make_deferred_attribute_type());
}

}  // namespace fxpress::bind
