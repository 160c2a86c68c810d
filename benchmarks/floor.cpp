// The minimum time of an operation: the time for creating the objects of its result.
// benchmarks/floor.py compiles this file together with csrc/core, csrc/fx and csrc/py.

#include <pybind11/stl.h>

#include <chrono>
#include <vector>

#include "core/check.h"
#include "fx/attributes.h"
#include "fx/graph_module.h"
#include "fx/reader.h"
#include "fx/symbols.h"
#include "fx/writer.h"
#include "py/gc_pause.h"
#include "py/instance_dict.h"

namespace fxpress::floor {

namespace py = pybind11;
using namespace py::literals;
using core::NodeId;
using core::Op;

namespace {

// The parts that are needed to create a graph's nodes again; the graph must not change meanwhile.
class GraphCopier {
 public:
  explicit GraphCopier(PyObject* graph)
      : source_(fx::read_graph(graph, fx::InputOrder::kArguments)) {
    for (size_t i = 0; i < source_.graph.size(); ++i) {
      names_.push_back(fx::node_field(source_.nodes[i], fx::symbols.node_name));
      types_.push_back(fx::node_field(source_.nodes[i], fx::symbols.node_type_expr));
    }
  }

  // A new graph with the same nodes, names, arguments and metadata (shallow copies).
  Ref copy() const {
    const GcPause pause;
    fx::NameWriter name_writer(fx::NameWriter::Forbidden::kForNodes);
    fx::GraphWriter writer(name_writer);
    const core::Graph& flat = source_.graph;
    std::vector<PyObject*> copies(flat.size());
    for (uint32_t i = 0; i < flat.size(); ++i) {
      poll_signals(i);
      const fx::NewNode node = {flat.ops[i], source_.targets[flat.targets[i]],
                                name_writer.candidate(names_[i].get()), types_[i].get()};
      uint32_t use = flat.input_begin[i];
      copies[i] = writer.copy(node, source_.nodes[i], [&](PyObject*) {
        FXPRESS_CHECK(use < flat.input_begin[i + 1], "an output with more than one argument");
        return copies[flat.inputs[use++].value()];
      });
    }
    writer.finish();
    return Ref::borrow(writer.graph());
  }

  // A new GraphModule with a copy of the graph, and with the attributes of `owner`.
  Ref copy_module(PyObject* owner) const {
    const Ref graph = copy();
    const GcPause pause;
    fx::ModuleAttributes attributes;
    std::vector<Ref> values;
    fx::AttributePaths paths(owner);
    for (size_t i = 0; i < source_.graph.size(); ++i) {
      const Op op = source_.graph.ops[i];
      if (op != Op::kGetAttr && op != Op::kCallModule) continue;
      PyObject* target = source_.targets[source_.graph.targets[i]];
      values.push_back(paths.resolve(target));
      attributes.emplace_back(target, values.back().get());
    }
    return fx::make_graph_module(attributes, graph.get(), fx::CodeMode::kDeferred);
  }

 private:
  fx::ReadGraph source_;    // the graph, flat
  std::vector<Ref> names_;  // by node
  std::vector<Ref> types_;  // by node: its annotation, or None
};

// Returns the seconds of each call of `create`, without the time for freeing its result.
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

// A copy of a module, in which its dicts, lists and sets are copied, and `graph` is the graph.
py::object plain_copy(const py::object& module, const Ref& graph) {
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
  check(PyDict_SetItem(to.get(), fx::names.graph, graph.get()));
  return copy;
}

std::vector<double> creation_times(const std::vector<py::object>& modules, size_t repeats) {
  std::vector<GraphCopier> copiers;
  copiers.reserve(modules.size());
  for (const py::object& module : modules) copiers.emplace_back(module.attr("graph").ptr());
  return seconds_of(repeats, [&] {
    std::vector<Ref> created;
    created.reserve(modules.size());
    for (size_t i = 0; i < modules.size(); ++i) {
      created.push_back(copiers[i].copy_module(modules[i].ptr()));
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
      created.push_back(plain_copy(modules[i], copiers[i].copy()));
    }
    return created;
  });
}

}  // namespace

PYBIND11_MODULE(_floor, m) {
  m.def("adopt_tables", [](const py::object& tables) { fx::adopt_tables(tables.ptr()); });
  m.def("creation_times", creation_times, "modules"_a, "repeats"_a);
  m.def("plain_creation_times", plain_creation_times, "modules"_a, "repeats"_a);
}

}  // namespace fxpress::floor
