#include "export/unlift.h"

#include <algorithm>
#include <unordered_map>
#include <vector>

#include "export/plan/replacements.h"
#include "fx/arguments.h"
#include "fx/graph_module.h"
#include "fx/reader.h"
#include "fx/writer.h"
#include "py/calls.h"
#include "py/containers.h"
#include "py/gc_pause.h"

namespace fxpress::exporting {

using core::NodeId;
using core::Op;
using core::StringId;

namespace {

constexpr uint32_t kNever = core::FlatMap::kAbsent;

// Move numbers (see last_moves()) of new nodes: copy_ nodes come after all users that moved, and
// the output is the last user.
constexpr uint32_t kWriteMove = kNever - 2;
constexpr uint32_t kOutputMove = kNever - 1;

class Unlifter {
 public:
  explicit Unlifter(const UnliftSource& source)
      : source_(source),
        read_(fx::read_graph(source.graph.get(), fx::InputOrder::kArguments)),
        name_writer_(fx::NameWriter::Forbidden::kForNodes),
        writer_(name_writer_, Ref::borrow(source.into.get())),
        dead_(source.drop_dead_code ? fx::find_dead_nodes(read_)
                                    : std::vector<uint8_t>(read_.graph.size(), 0)),
        copies_(read_.graph.size()),
        own_id_(Ref::steal(PyLong_FromVoidPtr(source.into.get()))),
        origin_id_(Ref::steal(PyLong_FromVoidPtr(source.origin.get()))) {}

  void run() {
    find_inputs();
    find_origins();
    name_nodes();
    find_writes();
    for (uint32_t i = 0; i < size(); ++i) {
      poll_signals(i);
      if (op(i) == Op::kOutput) {
        write_copy_nodes();
        write_output(i);
      } else if (dead_[i] == 0) {
        write_node(i);
      }
    }
    take_names();
    writer_.finish();
    order_users();
  }

 private:
  struct OutputWrite {
    uint32_t input;            // the node of the program's graph that is written to
    PyObject* value;           // the value to write, a leaf of the output; borrowed
    StringId name;             // name of the copy_ node
    PyObject* made = nullptr;  // the copy_ node; borrowed
  };

  uint32_t size() const { return static_cast<uint32_t>(read_.graph.size()); }
  Op op(uint32_t i) const { return read_.graph.ops[i]; }
  PyObject* node(uint32_t i) const { return read_.nodes[i]; }
  PyObject* target(uint32_t i) const { return read_.targets[read_.graph.targets[i]]; }
  StringId name_id(PyObject* name) { return name_writer_.intern(utf8(name)); }

  // ---- placeholders, and the originals of copied nodes ----

  void find_inputs() {
    lifted_.assign(size(), nullptr);
    const Py_ssize_t listed = PyList_GET_SIZE(source_.lifted.get());
    const auto count = std::count(read_.graph.ops.begin(), read_.graph.ops.end(), Op::kPlaceholder);
    if (listed != count) {
      raise(PyExc_AssertionError,
            "Number of lifted inputs (%zd) does not match placeholder nodes (%zd)", listed,
            static_cast<Py_ssize_t>(count));
    }
    Py_ssize_t next = 0;
    for (uint32_t i = 0; i < size(); ++i) {
      if (op(i) != Op::kPlaceholder) continue;
      PyObject* name = PyList_GET_ITEM(source_.lifted.get(), next++);
      if (name == Py_None) continue;
      lifted_[i] = name;
      replaced_.emplace_back(i);
    }
  }

  // Indexes the nodes of source_.origin, from which the program's nodes were copied. Placeholders
  // are found by target, because copying may rename them. All other nodes are found by name.
  void find_origins() {
    origins_ = fx::list_nodes(source_.origin.get());
    for (uint32_t k = 0; k < origins_.size(); ++k) {
      PyObject* origin = origins_[k].get();
      const bool is_input =
          fx::parse_op(fx::node_field(origin, fx::symbols.node_op).get()) == Op::kPlaceholder;
      const Ref key =
          fx::node_field(origin, is_input ? fx::symbols.node_target : fx::symbols.node_name);
      (is_input ? inputs_by_target_ : nodes_by_name_).assign(name_id(key.get()).value(), k);
    }
  }

  // ---- names of the new nodes ----

  // Names the copies first, because torch copies the graph before it replaces nodes.
  void name_nodes() {
    fx::NameWriter& names = name_writer_;
    names_.resize(size());
    for (uint32_t i = 0; i < size(); ++i) {
      const Ref name = fx::node_field(node(i), fx::symbols.node_name);
      names_[i] =
          names.table().create(op(i) == Op::kOutput ? names.candidate_for_target(fx::symbols.output)
                                                    : names.candidate(name.get()));
    }
    for (Py_ssize_t k = 0; k < PyList_GET_SIZE(source_.taken.get()); ++k) {
      const StringId name = names.candidate(PyList_GET_ITEM(source_.taken.get(), k));
      if (!names.table().is_used(name)) dropped_names_.push_back(names.table().create(name));
    }
    attribute_names_.resize(size());
    for (NodeId input : replaced_) {
      PyObject* name = lifted_[input.value()];
      attribute_names_[input.value()] = names.table().create(names.candidate_for_target(name));
    }
  }

  void take_names() {
    for (StringId name : dropped_names_) writer_.take_name(name);
    for (uint32_t i = 0; i < size(); ++i) {
      if (dead_[i] != 0 || lifted_[i] != nullptr) writer_.take_name(names_[i]);
    }
  }

  // ---- writes of outputs to state and inputs ----

  void find_writes() {
    const Py_ssize_t count = PyList_GET_SIZE(source_.outputs.get());
    if (count != PyList_GET_SIZE(source_.written.get())) {
      raise(PyExc_AssertionError, "Number of outputs (%zd) does not match mutated outputs (%zd)",
            count, PyList_GET_SIZE(source_.written.get()));
    }
    core::FlatMap state;
    core::FlatMap inputs;
    for (uint32_t i = 0; i < size(); ++i) {
      if (op(i) != Op::kPlaceholder) continue;
      if (lifted_[i] != nullptr) {
        state.assign(name_id(lifted_[i]).value(), i);
      } else {
        const Ref name = fx::node_field(node(i), fx::symbols.node_name);
        inputs.insert(name_id(name.get()).value(), i);
        inputs.assign(names_[i].value(), i);
      }
    }
    for (Py_ssize_t k = 0; k < count; ++k) {
      PyObject* name = PyList_GET_ITEM(source_.written.get(), k);
      PyObject* value = PyList_GET_ITEM(source_.outputs.get(), k);
      if (name == Py_None) {
        returned_.push_back(value);
        continue;
      }
      const StringId id = name_id(name);
      uint32_t into = state.find(id.value());
      if (into == kNever) into = inputs.find(id.value());
      if (into == kNever) {
        raise(PyExc_RuntimeError, "Could not find %U in either buffer or input nodes", name);
      }
      const StringId candidate = name_writer_.candidate_for_target(fx::symbols.copy_);
      writes_.push_back({into, value, name_writer_.table().create(candidate)});
    }
    dropped_names_.push_back(
        name_writer_.table().create(name_writer_.candidate_for_target(fx::symbols.output)));
  }

  // ---- provenance records (fx/provenance.h) in the meta of new nodes ----

  Ref note_of_copy(uint32_t i) {
    const bool is_input = op(i) == Op::kPlaceholder;
    const uint32_t found = is_input ? inputs_by_target_.find(name_id(target(i)).value())
                                    : nodes_by_name_.find(names_[i].value());
    if (found == kNever) return fx::note_of_none(source_.created);
    PyObject* origin = origins_[found].get();
    const Ref name = fx::node_field(origin, fx::symbols.node_name);
    const Ref target = fx::node_field(origin, fx::symbols.node_target);
    const Ref meta = fx::node_field(origin, fx::symbols.node_meta);
    const Ref earlier = Ref::borrow(dict_get(meta.get(), fx::names.from_node));
    return fx::note_of(source_.created,
                       {name.get(), texts_.of(target.get()), origin_id_.get(), earlier.get()});
  }

  // Returns the meta of node i's copy or, if `is_replaced`, of the node that replaces the copy.
  Ref meta_of(uint32_t i, bool is_replaced) {
    Ref meta = fx::GraphWriter::copy_meta(node(i));
    Ref note = note_of_copy(i);
    if (is_replaced) {
      note = fx::note_of(source_.replaced, {name_writer_.string(names_[i]), texts_.of(target(i)),
                                            own_id_.get(), note.get()});
    }
    check(PyObject_SetItem(meta.get(), fx::names.from_node, note.get()));
    return meta;
  }

  // ---- writing the new graph ----

  void write_node(uint32_t i) {
    if (PyObject* name = lifted_[i]) {
      copies_[i] = writer_.leaf({Op::kGetAttr, name, {}, Py_None, attribute_names_[i]},
                                Ref::borrow(fx::no_args), meta_of(i, true));
      return;
    }
    const Ref type_expr = fx::node_field(node(i), fx::symbols.node_type_expr);
    copies_[i] = writer_.copy_node(
        {op(i), target(i), {}, type_expr.get(), names_[i]}, read_, NodeId(i),
        [&](NodeId def) { return copy_of(def.value()); }, meta_of(i, false));
  }

  PyObject* copy_of(uint32_t i) const {
    if (copies_[i] == nullptr) {
      raise(PyExc_KeyError,
            "node %R is used before it is defined: the graph is not in topological order", node(i));
    }
    return copies_[i];
  }

  PyObject* copy_of(PyObject* def) const {
    const uint32_t id = read_.nodes.find(def);
    if (id == kNever) fx::raise_edited();
    return copy_of(id);
  }

  // Replaces the nodes in a leaf of the output by their copies. Appends these copies to `inputs`.
  Ref value_of(PyObject* leaf, std::vector<PyObject*>& inputs) {
    return mapper_.map(leaf, [&](PyObject* def) {
      inputs.push_back(copy_of(def));
      return inputs.back();
    });
  }

  void write_copy_nodes() {
    for (OutputWrite& write : writes_) {
      std::vector<PyObject*> inputs = {copy_of(write.input)};
      const Ref value = value_of(write.value, inputs);
      Ref args = Ref::steal(PyTuple_Pack(2, inputs[0], value.get()));
      write.made = writer_.create({Op::kCallFunction, fx::symbols.copy_, {}, Py_None, write.name},
                                  std::move(args), Ref::borrow(fx::no_kwargs), inputs, {});
      moves_of_new_.insert(ObjectTable::key(write.made), kWriteMove);
      if (fx::is_node(write.value)) written_as_[write.value] = write.made;
    }
  }

  // Writes the output node. It returns a written value's last copy_ node instead of the value.
  void write_output(uint32_t i) {
    std::vector<PyObject*> inputs;
    std::vector<Ref> values;
    values.reserve(returned_.size());
    for (PyObject* leaf : returned_) {
      const auto written = written_as_.find(leaf);
      if (written == written_as_.end()) {
        values.push_back(value_of(leaf, inputs));
      } else {
        inputs.push_back(written->second);
        values.push_back(Ref::borrow(written->second));
      }
    }
    const Ref all = take_as_tuple(values);
    Ref args = Ref::steal(PyTuple_Pack(1, all.get()));
    PyObject* made =
        writer_.create({Op::kOutput, fx::symbols.output, {}, Py_None, names_[i]}, std::move(args),
                       Ref::borrow(fx::no_kwargs), inputs, meta_of(i, true));
    moves_of_new_.insert(ObjectTable::key(made), kOutputMove);
  }

  // ---- order of users ----

  void order_users() {
    core::Graph& graph = read_.graph;
    graph.link_users();
    const std::vector<uint32_t> moves = last_moves(graph, replaced_);
    for (uint32_t i = 0; i < size(); ++i) {
      if (copies_[i] != nullptr) moves_of_new_.insert(ObjectTable::key(copies_[i]), moves[i]);
    }
    for (PyObject* copy : copies_) {
      if (copy != nullptr) order_users_of(copy);
    }
  }

  void order_users_of(PyObject* copy) {
    const Ref table = fx::dict_field(copy, fx::symbols.node_users);
    if (PyDict_GET_SIZE(table.get()) < 2) return;
    std::vector<std::pair<uint32_t, Ref>> users;
    for (const auto& [user, _] : DictRange(table.get())) {
      users.emplace_back(moves_of_new_.find(ObjectTable::key(user)), Ref::borrow(user));
    }
    const auto earlier = [](const auto& a, const auto& b) { return a.first < b.first; };
    if (std::is_sorted(users.begin(), users.end(), earlier)) return;
    std::stable_sort(users.begin(), users.end(), earlier);
    PyDict_Clear(table.get());
    for (const auto& [_, each] : users) check(PyDict_SetItem(table.get(), each.get(), Py_None));
  }

  const UnliftSource& source_;
  fx::ReadGraph read_;  // the program's graph
  fx::NameWriter name_writer_;
  fx::GraphWriter writer_;
  std::vector<uint8_t> dead_;              // by node of read_: whether it is dead, so omitted
  std::vector<PyObject*> lifted_;          // by node of read_: the name of its state, or null
  std::vector<NodeId> replaced_;           // the placeholders that get_attr nodes replace
  std::vector<Ref> origins_;               // nodes of source_.origin
  core::FlatMap inputs_by_target_;         // from targets of placeholders to indices in origins_
  core::FlatMap nodes_by_name_;            // from names of non-placeholders to indices in origins_
  std::vector<StringId> names_;            // by node of read_: the name of its copy
  std::vector<StringId> attribute_names_;  // by node of read_: name of its get_attr, if replaced
  std::vector<StringId> dropped_names_;    // reserved names, which no new node gets
  std::vector<OutputWrite> writes_;        // in the order of the outputs
  std::vector<PyObject*> returned_;        // leaves of the output; borrowed
  std::unordered_map<PyObject*, PyObject*> written_as_;  // from written leaves to copy_ nodes
  std::vector<PyObject*> copies_;                        // by node of read_: its copy; borrowed
  core::FlatMap moves_of_new_;  // from addresses of new nodes to move numbers
  fx::ArgMapper mapper_;
  fx::TargetTexts texts_;
  Ref own_id_;     // id() of the new graph
  Ref origin_id_;  // id() of source_.origin
};

}  // namespace

Ref unlift(const UnliftSource& source) {
  const GcPause pause;
  Unlifter(source).run();
  return fx::make_graph_module_of(source.owner.get(), source.into.get(),
                                  {source.module_class.get(), source.state.get()});
}

}  // namespace fxpress::exporting
