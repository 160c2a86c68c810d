// Defines the modules fxpress._aten_213, _aten_214, ..., which need libtorch. Each is built for one
// minor version of torch. fxpress._torch.aten imports the module of the running torch.

#include <pybind11/pybind11.h>

namespace fxpress::aten {

namespace py = pybind11;

// Defined in engine.cpp and tensor.cpp. In a unity build, clang-tidy sees the definitions first.
// NOLINTBEGIN(readability-redundant-declaration)
void bind_engine(py::module_& module);
void bind_tensor(py::module_& module);
// NOLINTEND(readability-redundant-declaration)

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

PYBIND11_MODULE(FXPRESS_ATEN_MODULE, m) {
  m.doc() = "fxpress: tensors and state, against libtorch.";
  m.def("build_info", build_info,
        "Return the versions of fxpress, the compiler, pybind11 and torch.");
  bind_tensor(m);
  bind_engine(m);
}

}  // namespace fxpress::aten
