// Graphs for Model Explorer, from the JSON text of a program.

#include <pybind11/stl.h>

#include <optional>
#include <string>

#include "bind/closed_class.h"
#include "bind/components.h"
#include "view/graph_writer.h"
#include "view/json_value.h"

namespace fxpress::bind {

using view::GraphWriter;
using view::JsonValue;

void bind_view(py::module_& m) {
  closed_class<JsonValue>(m, "JsonValue", "A value of a JSON text, which is made when asked for.")
      .def(py::init<const py::bytes&, core::Budget&>(), "text"_a, "budget"_a, py::pos_only(),
           "Read a text; ValueError names the place where it is no JSON.")
      .def(
          "field", [](const JsonValue& value, const std::string& key) { return value.field(key); },
          "key"_a, py::pos_only(),
          "Return a value of an object; KeyError, or TypeError where this is no object.")
      .def(
          "load", [](const JsonValue& value) { return to_object(value.load()); },
          "Return what json.loads makes of it.")
      .def_property_readonly("cost", &JsonValue::cost,
                             "An estimate of the bytes that load() takes.");
  closed_class<GraphWriter>(m, "GraphWriter",
                            R"(Makes the nodes of a graph for Model Explorer.

The functions that describe the parts of nodes are explained in csrc/view/graph_writer.h.)")
      .def(py::init<JsonValue, const py::dict&, const py::dict&, const py::object&>(), "graph"_a,
           "functions"_a, "metadata"_a, "charge"_a, py::pos_only(),
           "Read a graph; charge(bytes) is told what nodes take, and raises where it is too much.")
      .def(
          "stacks", [](GraphWriter& writer) { return to_object(writer.stacks()); },
          "Return the stacks of modules in which nodes were traced -> how many nodes.")
      .def("write_inputs", &GraphWriter::write_inputs, "specs"_a, "state"_a, "layer"_a,
           py::pos_only(),
           "Write the text's inputs, with their specs, fields of names in the state by kind, and "
           "layer(path, bytes).")
      .def(
          "add",
          [](GraphWriter& writer, const py::str& id, const py::str& label, const py::str& layer,
             const py::list& attributes, const py::list& given) {
            return to_object(writer.add(id, label, layer, attributes, given));
          },
          "id"_a, "label"_a, "layer"_a, "attributes"_a, "given"_a, py::pos_only(),
          "Add a node; ValueError when it is given a value that no node has computed.")
      .def("write", &GraphWriter::write, "layer"_a, "bodies"_a, py::pos_only(),
           "Write the text's nodes, with layer(stack) and bodies(number, name, graphs).")
      .def("add_users", &GraphWriter::add_users, "Add to each node which nodes take its values.")
      .def_property_readonly(
          "nodes", [](const GraphWriter& writer) { return borrow_or_none(writer.nodes()); },
          "The nodes that were made.")
      .def_property_readonly("number", &GraphWriter::number,
                             "The number of the text's node or input that is at work.");
}

}  // namespace fxpress::bind
