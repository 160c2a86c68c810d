// Creates graphs. Appends nodes to a graph, and updates the graph's tables.
#pragma once

#include <span>
#include <vector>

#include "core/graph.h"
#include "fx/arguments.h"
#include "fx/names.h"
#include "fx/reader.h"
#include "py/object.h"

namespace fxpress::fx {

// Returns torch.fx.Graph() without running the constructors of the graph and its parts.
Ref new_graph();

struct NewNode {
  core::Op op;
  PyObject* target;          // a str or callable
  core::StringId candidate;  // the preferred name; a number may be added
  PyObject* type_expr;       // type annotation or None
  core::StringId name{};     // the exact name; if invalid, `candidate` is used
};

// Appends nodes to an empty graph. create() adds a node to the graph and its tables. finish() sets
// counts that are known only at the end. Pointers to nodes are borrowed from the graph.
class GraphWriter {
 public:
  // Writes into a new torch.fx.Graph(), or into `graph`, which must be empty.
  explicit GraphWriter(NameWriter& name_writer);
  GraphWriter(NameWriter& name_writer, Ref graph);

  PyObject* graph() const { return graph_.get(); }

  // Appends a node. args: a tuple. kwargs: an immutable dict. inputs: the nodes in args and kwargs,
  // in the order of visit_nodes(). meta: the node's meta, which is not copied, or empty.
  PyObject* create(const NewNode& node, Ref args, Ref kwargs, std::span<PyObject* const> inputs,
                   Ref meta);

  // Appends a copy of `original`. `replace(node)` returns the node of this graph that replaces an
  // input of `original`, borrowed. meta: the copy's meta; if empty, the original's meta is copied.
  template <class Replace>
  PyObject* copy(const NewNode& node, PyObject* original, Replace replace, Ref meta = {}) {
    inputs_.clear();
    Ref args = map(node_field(original, symbols.node_args).get(), replace);
    if (!PyTuple_Check(args.get())) raise_not_copied(original, "args", "tuple", args.get());
    Ref kwargs = node_field(original, symbols.node_kwargs);
    if (!PyDict_Check(kwargs.get()) || PyDict_GET_SIZE(kwargs.get()) > 0) {
      kwargs = map(kwargs.get(), replace);
      if (!PyDict_Check(kwargs.get())) {
        raise_not_copied(original, "kwargs", "dict", kwargs.get());
      }
    } else {
      kwargs = Ref::borrow(no_kwargs);
    }
    if (!meta) meta = copy_meta(original);
    return create(node, std::move(args), std::move(kwargs), inputs_, std::move(meta));
  }

  // Appends a copy of the node `id` of `source`, like copy(). Calls raise_edited() if the node was
  // edited after it was read. `copy_of(id)` returns the copy of an input in this graph, borrowed.
  template <class CopyOf>
  PyObject* copy_node(const NewNode& node, const ReadGraph& source, core::NodeId id, CopyOf copy_of,
                      Ref meta = {}) {
    InputCursor inputs(source.graph.inputs_of(id));
    const auto replace = [&](PyObject* def) { return copy_of(inputs.next(source.nodes, def)); };
    PyObject* made = copy(node, source.nodes[id.value()], replace, std::move(meta));
    inputs.finish();
    return made;
  }

  // Appends a node without inputs.
  PyObject* leaf(const NewNode& node, Ref args, Ref meta) {
    return create(node, std::move(args), Ref::borrow(no_kwargs), {}, std::move(meta));
  }

  // Appends a placeholder with the type annotation and a copy of the meta of `original`.
  PyObject* placeholder_like(PyObject* original, PyObject* target, Ref args) {
    const Ref type_expr = node_field(original, symbols.node_type_expr);
    const NewNode node = {core::Op::kPlaceholder, target, names_.candidate_for_target(target),
                          type_expr.get()};
    return leaf(node, std::move(args), copy_meta(original));
  }

  // Appends a get_attr with a copy of the meta of `original`.
  PyObject* get_attr_like(PyObject* original, PyObject* target) {
    const NewNode node = {core::Op::kGetAttr, target, names_.candidate_for_target(target), Py_None};
    return leaf(node, Ref::borrow(no_args), copy_meta(original));
  }

  // Appends the output node. Nodes in `value` are replaced by `replace`. name: see NewNode::name.
  template <class Replace>
  PyObject* output(PyObject* value, Replace replace, core::StringId name = {}) {
    inputs_.clear();
    const Ref mapped = map(value, replace);
    Ref args = Ref::steal(PyTuple_Pack(1, mapped.get()));
    NewNode node = output_node();
    node.name = name;
    return create(node, std::move(args), Ref::borrow(no_kwargs), inputs_, {});
  }
  // Appends a call of operator.getitem that computes value[index]. candidate: the preferred name;
  // if invalid, the name is made from the target.
  PyObject* getitem(PyObject* value, size_t index, Ref meta, core::StringId candidate = {});
  // Appends an output node. It returns a tuple of `values`, or values[0] if as_tuple is false.
  PyObject* output_of(std::span<PyObject* const> values, bool as_tuple);

  // Renames a node. `name` must have been created in this graph's namespace. The old name stays in
  // use.
  void rename(PyObject* node, PyObject* name);

  // Marks a name as in use in this graph, although no node has it.
  void take_name(core::StringId name);

  // Writes the counts of the namespace and the length of the graph, which is then complete.
  void finish();

  // Allows more nodes after finish(). They are appended at the graph's insert point, and do not get
  // names that other code has used since finish().
  void resume();

  // Returns node.meta.copy().
  static Ref copy_meta(PyObject* node);

 private:
  // Maps an argument by `replace`, and appends the resulting nodes to inputs_.
  template <class Replace>
  Ref map(PyObject* value, Replace& replace) {
    return mapper_.map(value, [&](PyObject* def) {
      inputs_.push_back(replace(def));
      return inputs_.back();
    });
  }
  NewNode output_node();
  void register_name(PyObject* node, PyObject* name);
  void register_lookup(PyObject* node, core::Op op, PyObject* target);
  Ref lookup_bucket(core::Op op, PyObject* target);
  void take(PyObject* name);
  void take_names_of_added_nodes();
  void take_all_names();

  NameWriter& names_;  // may be shared by several graphs of one call
  Ref graph_;          // the graph to write into
  Ref root_;           // the graph's root node, before which nodes are appended
  Ref insert_;         // function that inserts a node; if empty, nodes are added at the end
  Ref obj_to_name_;    // this and the next 2: tables of the namespace
  Ref used_names_;
  Ref base_count_;
  Ref lookup_table_;                // dict from (op, target) to a dict of nodes
  Ref op_buckets_[6] = {};          // values of lookup_table_ for ops without target
  core::FlatMap function_buckets_;  // from a function's address to an index in buckets_
  std::vector<Ref> buckets_;        // values of lookup_table_ for call_function
  Ref init_args_;                   // tuple of arguments, reused by create()
  ArgMapper mapper_;
  std::vector<PyObject*> inputs_;  // inputs of the node that is being copied; borrowed
  Py_ssize_t length_ = 0;          // number of nodes written since finish()
  Py_ssize_t named_ = 0;           // entries of obj_to_name_ whose names are also in names_
  Py_ssize_t used_ = 0;            // size of used_names_ in the last finish()
};

}  // namespace fxpress::fx
