#include "floor/creation_times.h"

#include <chrono>

#include "floor/graph_copy.h"
#include "fx/symbols.h"
#include "py/convert.h"
#include "py/gc_pause.h"
#include "py/instance_dict.h"

namespace fxpress::floor {

namespace py = pybind11;

namespace {

// Runs `create` once for each repeat; its result is freed after the clock was read.
template <class Create>
std::vector<double> seconds_of(size_t repeats, Create create) {
  std::vector<double> seconds;
  for (size_t i = 0; i < repeats; ++i) {
    const GcPause pause;
    const auto start = std::chrono::steady_clock::now();
    const auto created = create();
    const std::chrono::duration<double> elapsed = std::chrono::steady_clock::now() - start;
    seconds.push_back(elapsed.count());
  }
  return seconds;
}

// A module with the attributes of another one: the containers are copied, `graph` is its graph.
py::object plain_copy(const py::object& module, const py::object& graph) {
  PyTypeObject* type = Py_TYPE(module.ptr());
  auto copy = py::reinterpret_steal<py::object>(check(type->tp_alloc(type, 0)));
  const Ref from = instance_dict(module.ptr());
  const Ref to = instance_dict(copy.ptr());
  PyObject* key = nullptr;
  PyObject* value = nullptr;
  for (Py_ssize_t position = 0; PyDict_Next(from.get(), &position, &key, &value) != 0;) {
    Ref held = PyDict_CheckExact(value)   ? Ref::steal(PyDict_Copy(value))
               : PyList_CheckExact(value) ? Ref::steal(PySequence_List(value))
               : PySet_CheckExact(value)  ? Ref::steal(PySet_New(value))
                                          : Ref::borrow(value);
    check(PyDict_SetItem(to.get(), key, held.get()));
  }
  check(PyDict_SetItem(to.get(), fx::names.graph, graph.ptr()));
  return copy;
}

}  // namespace

std::vector<double> creation_times(const std::vector<py::object>& modules, size_t repeats) {
  std::vector<GraphCopier> copiers;
  copiers.reserve(modules.size());
  for (const py::object& module : modules) copiers.emplace_back(module.attr("graph").ptr());
  return seconds_of(repeats, [&] {
    std::vector<Ref> created;
    created.reserve(modules.size());
    for (size_t i = 0; i < modules.size(); ++i) {
      created.push_back(copiers[i].copy_module(modules[i].ptr(), fx::CodeMode::kDeferred));
    }
    return created;
  });
}

std::vector<double> plain_creation_times(const std::vector<py::object>& all, size_t repeats) {
  std::vector<GraphCopier> copiers;
  std::vector<py::object> modules;
  for (const py::object& module : all) {
    if (!py::hasattr(module, "graph")) continue;
    copiers.emplace_back(module.attr("graph").ptr());
    modules.push_back(module);
  }
  return seconds_of(repeats, [&] {
    std::vector<py::object> created;
    created.reserve(modules.size());
    for (size_t i = 0; i < copiers.size(); ++i) {
      created.push_back(plain_copy(modules[i], to_object(copiers[i].copy())));
    }
    return created;
  });
}

}  // namespace fxpress::floor
