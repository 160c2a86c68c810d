// Makes graphs, and writes nodes into them with every table that torch keeps of them.
#pragma once

#include <span>
#include <vector>

#include "core/graph.h"
#include "fx/arguments.h"
#include "fx/names.h"
#include "fx/reader.h"
#include "py/object.h"

namespace fxpress::fx {

// What torch.fx.Graph() returns, without the Python code of its constructor and of its parts'.
Ref new_graph();

struct NewNode {
  core::Op op;               // what the node does
  PyObject* target;          // str or callable
  core::StringId candidate;  // the name it would like to have
  PyObject* type_expr;       // its annotation, or None
  core::StringId name{};     // the name it has already; invalid: made from the candidate
};

// Appends to one empty graph. Nodes are created with arguments, the graph's own tables are written
// along the way; finish() adds what is only known at the end. All pointers are borrowed: the graph
// owns its nodes.
class GraphWriter {
 public:
  // Makes the graph: an ordinary torch.fx.Graph(). Or writes into one that has no nodes yet.
  explicit GraphWriter(NameWriter& name_writer);
  GraphWriter(NameWriter& name_writer, Ref graph);

  PyObject* graph() const { return graph_.get(); }

  // A node whose arguments are built already: `args` a tuple, `kwargs` an immutable dict, `inputs`
  // the nodes that they mention, in visiting order. `meta` is a dict to own, or empty.
  PyObject* create(const NewNode& node, Ref args, Ref kwargs, std::span<PyObject* const> inputs,
                   Ref meta);

  // A copy of `original` with other inputs: `replace(node)` gives the borrowed node of this graph.
  // `meta`: that of the copy; else that of the original, copied.
  template <class Replace>
  PyObject* copy(const NewNode& node, PyObject* original, Replace replace, Ref meta = {}) {
    inputs_.clear();
    const auto substitute = [&](PyObject* def) {
      PyObject* replacement = replace(def);
      inputs_.push_back(replacement);
      return replacement;
    };
    Ref args = mapper_.map(node_field(original, symbols.node_args).get(), substitute);
    if (!PyTuple_Check(args.get())) raise_not_copied(original, "args", "tuple", args.get());
    Ref kwargs = node_field(original, symbols.node_kwargs);
    if (!PyDict_Check(kwargs.get()) || PyDict_GET_SIZE(kwargs.get()) > 0) {
      kwargs = mapper_.map(kwargs.get(), substitute);
      if (!PyDict_Check(kwargs.get())) {
        raise_not_copied(original, "kwargs", "dict", kwargs.get());
      }
    } else {
      kwargs = Ref::borrow(no_kwargs);
    }
    if (!meta) meta = copy_meta(original);
    return create(node, std::move(args), std::move(kwargs), inputs_, std::move(meta));
  }

  // The same for a node of a graph that was read and must not have been edited since: `copy_of(id)`
  // returns the borrowed node that stands for an input.
  template <class CopyOf>
  PyObject* copy_node(const NewNode& node, const ReadGraph& source, core::NodeId id, CopyOf copy_of,
                      Ref meta = {}) {
    InputCursor inputs(source.graph.inputs_of(id));
    const auto replace = [&](PyObject* def) { return copy_of(inputs.next(source.nodes, def)); };
    PyObject* made = copy(node, source.nodes[id.value()], replace, std::move(meta));
    inputs.finish();
    return made;
  }

  // Nodes with no arguments, and those whose only argument is `args`.
  PyObject* leaf(const NewNode& node, Ref args, Ref meta) {
    return create(node, std::move(args), Ref::borrow(no_kwargs), {}, std::move(meta));
  }

  // The graph's output: `value` is mapped with `replace`. `name`: see NewNode.
  template <class Replace>
  PyObject* output(PyObject* value, Replace replace, core::StringId name = {}) {
    inputs_.clear();
    Ref mapped = mapper_.map(value, [&](PyObject* def) {
      PyObject* replacement = replace(def);
      inputs_.push_back(replacement);
      return replacement;
    });
    Ref args = Ref::steal(PyTuple_Pack(1, mapped.get()));
    NewNode node = output_node();
    node.name = name;
    return create(node, std::move(args), Ref::borrow(no_kwargs), inputs_, {});
  }
  PyObject* getitem(PyObject* value, size_t index, Ref meta);
  PyObject* output_of(std::span<PyObject* const> values, bool as_tuple);

  // Gives a node a name that was made in this graph's namespace; the one it had stays taken.
  void rename(PyObject* node, PyObject* name);

  // The name is taken in this graph, by a node that does not exist any more.
  void take_name(core::StringId name);

  // Writes the namespace's counts and the graph's length. The graph is complete afterwards.
  void finish();

  // Goes on after finish(): where the graph's user wants nodes to be, and without the names that
  // were taken meanwhile.
  void resume();

  // node.meta.copy()
  static Ref copy_meta(PyObject* node);

 private:
  NewNode output_node();
  void register_name(PyObject* node, PyObject* name);
  void register_lookup(PyObject* node, core::Op op, PyObject* target);
  Ref lookup_bucket(core::Op op, PyObject* target);
  void take(PyObject* name);
  void take_names_of_added_nodes();
  void take_all_names();

  NameWriter& names_;  // shared by the graphs of one call
  Ref graph_;          // the graph being written
  Ref root_;           // its sentinel node: appending is inserting before it
  Ref insert_;         // what puts nodes elsewhere; else empty
  Ref obj_to_name_;    // the namespace's three tables
  Ref used_names_;
  Ref base_count_;
  Ref lookup_table_;                // dict of (op, target) -> dict of nodes
  Ref op_buckets_[6] = {};          // lookup_table_ entries of ops without a target
  core::FlatMap function_buckets_;  // address of a function -> position in buckets_
  std::vector<Ref> buckets_;        // lookup_table_ entries of call_function
  Ref init_args_;                   // reused argument tuple of the node's initializer
  ArgMapper mapper_;
  std::vector<PyObject*> inputs_;  // of the node being copied; borrowed
  Py_ssize_t length_ = 0;          // nodes written since finish()
  Py_ssize_t named_ = 0;           // entries of obj_to_name_ whose names are taken in names_
  Py_ssize_t used_ = 0;            // names in used_names_ at the last finish()
};

}  // namespace fxpress::fx
