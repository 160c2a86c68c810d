#include "bind/closed_class.h"
#include "bind/components.h"
#include "bind/entries.h"
#include "fx/codegen.h"
#include "fx/graph_module.h"
#include "fx/provenance.h"
#include "fx/reader.h"
#include "py/calls.h"

namespace fxpress::bind {

namespace {

py::object python_source(const py::handle& graph) {
  auto source = fx::generate_source(graph.ptr());
  if (!source) return py::none();
  return py::make_tuple(std::move(source->text), std::move(source->globals),
                        std::move(source->line_numbers), source->prologue_start,
                        std::move(source->shape), std::move(source->locals));
}

// Inserts items into a dict after `key` and before all later keys. Runs no Python code, so that
// other threads do not observe a partial insertion.
void insert_after(const pybind11::dict& dict, const pybind11::str& key,
                  const pybind11::dict& items) {
  const pybind11::dict before = pybind11::dict(dict.attr("copy")());
  bool is_later = false;
  for (const auto& [name, value] : before) {
    if (is_later && !items.contains(name)) {
      check(PyDict_DelItem(dict.ptr(), name.ptr()));
      check(PyDict_SetItem(dict.ptr(), name.ptr(), value.ptr()));
    }
    if (!name.equal(key)) continue;
    is_later = true;
    for (const auto& [new_name, new_value] : items) {
      if (dict.contains(new_name)) check(PyDict_DelItem(dict.ptr(), new_name.ptr()));
      check(PyDict_SetItem(dict.ptr(), new_name.ptr(), new_value.ptr()));
    }
  }
}

}  // namespace

void bind_graphs(py::module_& m) {
  m.def("python_source", python_source, "graph"_a,
        R"(Return source, globals, line numbers, prologue line, shape and local names.

The shape is equal for sources that differ only in local names of the same length. It is None when
the names cannot be distinguished from the other text, when compiling the source runs more than a
`def`, or when the source is very long. The result is None for a graph whose code only torch's
generator can write.)");
  m.def(
      "on_unchanged",
      [](const py::handle& graph, const py::object& work) {
        py::object result;
        fx::on_unchanged(graph.ptr(), [&] { result = work(); });
        return result;
      },
      "graph"_a, "work"_a, py::pos_only(),
      "Return `work()`; RuntimeError if the graph was modified by then, also if `work()` fails.");
  m.def(
      "list_nodes",
      [](PyObject* graph) {
        const std::vector<Ref> nodes = fx::list_nodes(graph);
        return make_list(nodes.size(), [&](size_t i) { return Ref::borrow(nodes[i].get()); });
      },
      "graph"_a, py::pos_only(),
      "Return the nodes of a graph; RuntimeError if they are not linked into one ring.");
  m.def("insert_after", insert_after, "dict"_a, "key"_a, "items"_a,
        "Insert items into a dict right after `key`; keep the order of its other keys.");
  m.def(
      "make_graph_module",
      [](PyObject* root, PyObject* graph) { return fx::make_graph_module_of(root, graph); },
      "root"_a, "graph"_a, py::pos_only(),
      "Return `torch.fx.GraphModule(root, graph)`; its source is generated on first use.");
  closed_class<fx::Provenance>(m, "Provenance", "Creates the `from_node` lists of a pass.")
      .def(py::init([](const py::dict& rules) { return fx::Provenance(provenance_rules(rules)); }),
           "rules"_a, py::pos_only(), "Use the result of `provenance_rules`.")
      .def(
          "note",
          [](fx::Provenance& self, const py::str& name, PyObject* target, const py::int_& graph_id,
             PyObject* earlier) { return self.note(name.ptr(), target, graph_id.ptr(), earlier); },
          "name"_a, "target"_a, "graph_id"_a, "earlier"_a, py::pos_only(),
          "Return a list with the NodeSource of a node; `earlier`: its `from_node`, or None.")
      .def("note_of_none", &fx::Provenance::note_of_none,
           "Return a list with the NodeSource of a node that was not made from another.");
}

}  // namespace fxpress::bind
