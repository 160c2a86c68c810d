#include <pybind11/stl.h>

#include <chrono>
#include <vector>

#include "bind/convert.h"
#include "fx/attributes.h"
#include "fx/codegen.h"
#include "fx/graph_copy.h"
#include "fx/symbols.h"
#include "py/gc_pause.h"
#include "py/instance_dict.h"

namespace fxpress::bind {

namespace {

py::object python_source(const py::handle& graph) {
  auto source = fx::generate_source(graph.ptr());
  if (!source) return py::none();
  return py::make_tuple(to_object(std::move(source->text)), to_object(std::move(source->globals)),
                        to_object(std::move(source->line_numbers)), source->prologue_start,
                        to_object(std::move(source->shape)), to_object(std::move(source->locals)));
}

// Inserts items right behind `key`, as if they had been there when the later keys were added.
// One step for other threads: no Python code runs in between.
void insert_after(const py::dict& dict, const py::str& key, const py::dict& items) {
  const py::dict before = py::dict(dict.attr("copy")());
  bool behind = false;
  for (const auto& [name, value] : before) {
    if (behind && !items.contains(name)) {
      check(PyDict_DelItem(dict.ptr(), name.ptr()));
      check(PyDict_SetItem(dict.ptr(), name.ptr(), value.ptr()));
    }
    if (!name.equal(key)) continue;
    behind = true;
    for (const auto& [new_name, new_value] : items) {
      if (dict.contains(new_name)) check(PyDict_DelItem(dict.ptr(), new_name.ptr()));
      check(PyDict_SetItem(dict.ptr(), new_name.ptr(), new_value.ptr()));
    }
  }
}

// Seconds that it takes to create the modules' graphs again, and the modules around them, when
// everything about them is known: the floor that an operation with these results is held against.
std::vector<double> creation_times(const std::vector<py::object>& modules, size_t repeats) {
  std::vector<fx::GraphCopier> copiers;
  for (const py::object& module : modules) copiers.emplace_back(module.attr("graph").ptr());
  std::vector<double> seconds;
  for (size_t i = 0; i < repeats; ++i) {
    const GcPause pause;
    std::vector<Ref> created;
    const auto start = std::chrono::steady_clock::now();
    for (size_t k = 0; k < modules.size(); ++k) {
      created.push_back(copiers[k].copy_module(modules[k].ptr(), fx::CodeMode::kDeferred));
    }
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

// Measures the same for modules that run their graph themselves: a Graph and an nn.Module each.
std::vector<double> plain_creation_times(const std::vector<py::object>& all, size_t repeats) {
  std::vector<fx::GraphCopier> copiers;
  std::vector<py::object> modules;
  for (const py::object& module : all) {
    if (!py::hasattr(module, "graph")) continue;
    copiers.emplace_back(module.attr("graph").ptr());
    modules.push_back(module);
  }
  std::vector<double> seconds;
  for (size_t i = 0; i < repeats; ++i) {
    const GcPause pause;
    std::vector<py::object> created;
    const auto start = std::chrono::steady_clock::now();
    for (size_t k = 0; k < copiers.size(); ++k) {
      created.push_back(plain_copy(modules[k], to_object(copiers[k].copy())));
    }
    const std::chrono::duration<double> elapsed = std::chrono::steady_clock::now() - start;
    seconds.push_back(elapsed.count());
  }
  return seconds;
}

}  // namespace

void bind_graphs(py::module_& m) {
  m.def("python_source", python_source);
  m.def("insert_after", insert_after);
  m.def("creation_times", creation_times);
  m.def("plain_creation_times", plain_creation_times);
  m.def("make_graph_module", [](const py::handle& root, const py::handle& graph) {
    return to_object(fx::make_graph_module_of(root.ptr(), graph.ptr()));
  });
}

}  // namespace fxpress::bind
