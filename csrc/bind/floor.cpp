#include <pybind11/stl.h>

#include "bind/components.h"
#include "floor/creation_times.h"

namespace fxpress::bind {

void bind_floor(py::module_& m) {
  m.def("creation_times", floor::creation_times, "modules"_a, "repeats"_a,
        "Return, for each repeat, the seconds to create GraphModules again from known parts.");
  m.def(
      "plain_creation_times", floor::plain_creation_times, "modules"_a, "repeats"_a,
      "Return the `creation_times` of modules that run their `graph`: a Graph and nn.Module each.");
}

}  // namespace fxpress::bind
