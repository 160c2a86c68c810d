#include "fx/reader.h"

#include <algorithm>

#include "fx/arguments.h"
#include "fx/symbols.h"
#include "py/calls.h"

namespace fxpress::fx {

using core::NodeId;
using core::Op;

namespace {

size_t graph_length(PyObject* graph) {
  const Ref length = get_attr(graph, names.len);
  const Py_ssize_t n = PyLong_AsSsize_t(length.get());
  if (n < 0) {
    if (PyErr_Occurred() != nullptr) throw_python_error();
    return 0;
  }
  return static_cast<size_t>(n);
}

template <class Visit>
void visit_list(PyObject* graph, Visit visit) {
  walk_nodes(get_attr(graph, names.root).get(), [&](PyObject* node) {
    if (!is_erased(node)) visit(node);
  });
}

}  // namespace

std::vector<Ref> list_nodes(PyObject* graph) {
  std::vector<Ref> result;
  result.reserve(graph_length(graph));
  visit_list(graph, [&](PyObject* node) { result.push_back(Ref::borrow(node)); });
  return result;
}

Snapshot::Snapshot(PyObject* graph) : graph_(Ref::borrow(graph)) {
  nodes_.reserve(graph_length(graph));
  walk_nodes(get_attr(graph, names.root).get(),
             [&](PyObject* node) { nodes_.push_back(fields_of(node)); });
}

bool Snapshot::is_current() const {
  bool is_same = true;
  size_t i = 0;
  try {
    walk_nodes(get_attr(graph_.get(), names.root).get(), [&](PyObject* node) {
      is_same = is_same && i < nodes_.size() &&
                std::ranges::equal(fields_of(node), nodes_[i], {}, &Ref::get, &Ref::get);
      ++i;
    });
  } catch (pybind11::error_already_set&) {
    return false;
  }
  return is_same && i == nodes_.size();
}

Snapshot::Fields Snapshot::fields_of(PyObject* node) {
  return {Ref::borrow(node),
          node_field(node, symbols.node_op),
          node_field(node, symbols.node_target),
          node_field(node, symbols.node_args),
          node_field(node, symbols.node_kwargs),
          node_field(node, symbols.node_name)};
}

ReadGraph read_graph(PyObject* graph, InputOrder order) {
  const size_t expected = graph_length(graph);
  ReadGraph result{core::Graph(), ObjectTable(expected), ObjectTable()};
  core::Graph& flat = result.graph;
  flat.ops.reserve(expected);
  flat.targets.reserve(expected);
  flat.input_begin.reserve(expected + 1);
  flat.inputs.reserve(expected + expected / 2);

  visit_list(graph, [&](PyObject* node) {
    result.nodes.add(node);
    flat.ops.push_back(parse_op(node_field(node, symbols.node_op).get()));
    flat.targets.push_back(result.targets.add(node_field(node, symbols.node_target).get()));
  });

  std::vector<ArgCursor> stack;
  const auto add_arguments = [&](PyObject* user, Op op, auto add_input) {
    if (op == Op::kOutput) {
      visit_nodes(returned_value(user).get(), stack, add_input);
      return;
    }
    const Ref args = node_field(user, symbols.node_args);
    visit_nodes(args.get(), stack, add_input);
    const Ref kwargs = node_field(user, symbols.node_kwargs);
    if (!PyDict_Check(kwargs.get()) || PyDict_GET_SIZE(kwargs.get()) > 0) {
      visit_nodes(kwargs.get(), stack, add_input);
    }
  };
  for (size_t i = 0; i < flat.size(); ++i) {
    PyObject* user = result.nodes[i];
    const auto add_input = [&](PyObject* def) {
      const uint32_t id = result.nodes.find(def);
      if (id == core::FlatMap::kAbsent) {
        raise(PyExc_KeyError,
              "node %R uses %R, which is not in the graph (erased, or of another "
              "graph): replace the argument or insert the node",
              user, def);
      }
      flat.inputs.emplace_back(id);
    };
    if (order == InputOrder::kArguments) {
      add_arguments(user, flat.ops[i], add_input);
    } else {
      const Ref inputs = dict_field(user, symbols.node_input_nodes);
      for (const auto& input : DictRange(inputs.get())) add_input(input.key);
    }
    flat.input_begin.push_back(static_cast<uint32_t>(flat.inputs.size()));
  }
  return result;
}

namespace {

// Returns whether a function begins or ends vmap or jvp. torch keeps calls of such a function,
// although Node.is_impure() returns false.
bool is_nesting(PyObject* function) {
  return PyFunction_Check(function) && contains(symbols.nesting_functions, function);
}

}  // namespace

std::vector<uint8_t> find_dead_nodes(const ReadGraph& source) {
  const core::Graph& graph = source.graph;
  std::vector<uint8_t> dead(graph.size(), 0);
  std::vector<uint32_t> uses(graph.size(), 0);
  for (NodeId def : graph.inputs) ++uses[def.value()];
  for (size_t i = graph.size(); i-- > 0;) {
    if (uses[i] > 0 || graph.ops[i] == Op::kPlaceholder || graph.ops[i] == Op::kOutput) continue;
    if (is_true(call_method(source.nodes[i], names.is_impure).get())) continue;
    if (graph.ops[i] == Op::kCallFunction && is_nesting(source.targets[graph.targets[i]])) continue;
    dead[i] = 1;
    for (NodeId def : graph.inputs_of(NodeId(i))) --uses[def.value()];
  }
  return dead;
}

}  // namespace fxpress::fx
