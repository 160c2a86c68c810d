// The module fxpress._aten_ext: what needs libtorch. Built for one torch minor version; the Python
// module fxpress._aten checks that version before it loads this one.

#include "aten/lists.h"

namespace fxpress::aten {

namespace py = pybind11;

namespace {

py::dict build_info() {
  py::dict info;
  info["version"] = FXPRESS_VERSION;
  info["compiler"] = __VERSION__;
  info["cplusplus"] = __cplusplus;
  info["build_type"] = FXPRESS_BUILD_TYPE;
  info["pybind11"] = PYBIND11_TOSTRING(PYBIND11_VERSION_MAJOR) "." PYBIND11_TOSTRING(
      PYBIND11_VERSION_MINOR) "." PYBIND11_TOSTRING(PYBIND11_VERSION_MICRO);
  info["torch"] = FXPRESS_TORCH_VERSION;
  return info;
}

}  // namespace

PYBIND11_MODULE(_aten_ext, m) {
  m.doc() = "fxpress: tensors and state, against libtorch.";
  m.def("build_info", build_info,
        "Return the versions of fxpress, the compiler, pybind11 and torch.");
  bind_tensor(m);
  bind_engine(m);
}

}  // namespace fxpress::aten
