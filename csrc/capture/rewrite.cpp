#include "capture/rewrite.h"

#include "fx/arguments.h"
#include "fx/graph_module.h"
#include "fx/reader.h"
#include "fx/writer.h"
#include "py/calls.h"
#include "py/containers.h"
#include "py/gc_pause.h"

namespace fxpress::capture {

using core::NodeId;
using core::Op;
using core::StringId;

bool is_set(PyObject* dict, PyObject* key) {
  const Ref value = Ref::borrow(dict_get(dict, key));
  return value && is_true(value.get());
}

Ref dict_of_meta(PyObject* node) {
  Ref meta = fx::node_field(node, fx::symbols.node_meta);
  if (!PyDict_Check(meta.get()))
    raise(PyExc_TypeError, "expected a dict as the meta of node %R, found %R", node, meta.get());
  return meta;
}

namespace {

// Whether copy.copy(value) returns `value` itself.
bool is_atom(PyObject* value) {
  return value == Py_None || PyUnicode_CheckExact(value) || PyLong_CheckExact(value) ||
         PyBool_Check(value) || PyFloat_CheckExact(value) || PyTuple_CheckExact(value);
}

// Computes the meta that torch.fx.Transformer gives to the copy of a node.
class BirthMeta {
 public:
  BirthMeta(const BirthRules& rules, PyObject* graph)
      : rules_(rules), graph_id_(Ref::steal(PyLong_FromVoidPtr(graph))) {}

  // Returns the meta for the copy of `node` as a new dict.
  Ref of(PyObject* node) {
    const Ref own = dict_of_meta(node);
    const bool has_own = PyDict_GET_SIZE(own.get()) > 0;
    PyObject* const current = has_own ? own.get() : rules_.outer.get();
    Ref meta = Ref::steal(PyDict_New());
    const auto set = [&](PyObject* key, PyObject* value) {
      check(PyDict_SetItem(meta.get(), key, value));
    };
    if (is_set(current, fx::names.stack_trace)) {
      const Ref trace = Ref::borrow(dict_get(current, fx::names.stack_trace));
      if (!trace) fx::raise_edited();
      set(fx::names.stack_trace, trace.get());
      if (contains(trace.get(), rules_.marker.get())) {
        set(fx::names.is_gradient_acc, Py_True);
        set(fx::names.autograd_backward, Py_True);
      }
    }
    for (PyObject* field : items_of(rules_.fields.get())) {
      if (has_own && PyUnicode_Compare(field, fx::names.from_node) == 0) {
        set(field, note(node, own.get()).get());
      } else if (const Ref value = Ref::borrow(dict_get(current, field))) {
        set(field, copied(value.get()).get());
      }
    }
    add_sequence(meta.get(), current);
    check(PyDict_Update(meta.get(), rules_.overlay.get()));
    if (is_set(current, fx::names.autograd_backward)) set(fx::names.autograd_backward, Py_True);
    for (PyObject* key : {fx::names.val, fx::names.example_value, fx::names.unbacked_bindings}) {
      if (PyObject* value = dict_get(own.get(), key)) set(key, value);
    }
    return meta;
  }

 private:
  Ref copied(PyObject* value) const {
    if (is_atom(value)) return Ref::borrow(value);
    if (PyDict_CheckExact(value)) return Ref::steal(PyDict_Copy(value));
    if (PyList_CheckExact(value)) return Ref::steal(PySequence_List(value));
    return call(rules_.copy.get(), value);
  }

  Ref note(PyObject* node, PyObject* meta) {
    const Ref name = fx::node_field(node, fx::symbols.node_name);
    const Ref target = fx::node_field(node, fx::symbols.node_target);
    const Ref earlier = Ref::borrow(dict_get(meta, fx::names.from_node));
    return fx::note_of(rules_.provenance,
                       {name.get(), texts_.of(target.get()), graph_id_.get(), earlier.get()});
  }

  void add_sequence(PyObject* meta, PyObject* current) const {
    const Ref zero = Ref::steal(PyLong_FromLong(0));
    const Ref depth = Ref::borrow(dict_get(current, fx::names.in_grad_fn));
    Ref number;
    if (depth && check(PyObject_RichCompareBool(depth.get(), zero.get(), Py_GT))) {
      const Ref numbers = Ref::borrow(dict_get(current, fx::names.grad_fn_seq_nr));
      if (!numbers) raise(PyExc_KeyError, "%U", fx::names.grad_fn_seq_nr);
      number = Ref::steal(PySequence_GetItem(numbers.get(), -1));
    } else if (rules_.sequence.get() == Py_None) {
      number = Ref::borrow(dict_get(current, fx::names.seq_nr));
    } else {
      number = Ref::borrow(rules_.sequence.get());
    }
    if (number && number.get() != Py_None) {
      check(PyDict_SetItem(meta, fx::names.seq_nr, number.get()));
    }
  }

  const BirthRules& rules_;
  Ref graph_id_;
  fx::TargetTexts texts_;
};

// Converts the index of a flat input. Raises IndexError unless it is below `count`.
size_t input_number(PyObject* number, size_t count) {
  const Py_ssize_t index = PyNumber_AsSsize_t(number, PyExc_IndexError);
  if (index == -1 && PyErr_Occurred() != nullptr) throw_python_error();
  if (index < 0 || static_cast<size_t>(index) >= count) {
    raise(PyExc_IndexError, "the index %zd of an input is out of range: the graph has %zu inputs",
          index, count);
  }
  return static_cast<size_t>(index);
}

class Rewriter {
 public:
  Rewriter(PyObject* module, const RewritePlan& plan)
      : module_(module),
        plan_(plan),
        old_graph_(get_attr(module, fx::names.graph)),
        source_(fx::read_graph(old_graph_.get(), fx::InputOrder::kArguments)),
        birth_(plan.birth, old_graph_.get()),
        name_writer_(fx::NameWriter::Forbidden::kForNodes),
        writer_(name_writer_),
        copies_(source_.graph.size()),
        renamed_(Ref::steal(PyDict_New())) {}

  Ref run() {
    const core::Graph& flat = source_.graph;
    write_inputs();
    for (uint32_t i = 0; i < flat.size() && flat.ops[i] != Op::kOutput; ++i) {
      poll_signals(i);
      copies_[i] = flat.ops[i] == Op::kPlaceholder ? write_placeholder(i) : write_copy(i);
    }
    write_output();
    writer_.finish();
    return fx::make_graph_module_of(module_, writer_.graph(), {.renamed = renamed_.get()});
  }

 private:
  void write_inputs() {
    for (Py_ssize_t i = 0; i < PyList_GET_SIZE(plan_.inputs.get()); ++i) {
      const Ref target = Ref::steal(PyUnicode_FromFormat("arg_%zd", i));
      const fx::NewNode node = {Op::kPlaceholder, target.get(),
                                name_writer_.candidate(target.get()), Py_None};
      PyObject* meta = PyList_GET_ITEM(plan_.inputs.get(), i);
      if (!PyDict_Check(meta))
        raise(PyExc_TypeError, "expected a dict as the meta of input %zd, found %R", i, meta);
      inputs_.push_back(writer_.leaf(node, Ref::borrow(fx::no_args), Ref::borrow(meta)));
      input_names_.push_back(fx::node_field(inputs_.back(), fx::symbols.node_name));
    }
  }

  // Returns the name for the copy of the node named `original`. Like torch.fx.Transformer, reserves
  // a name made from `own` first, even if the copy does not get this name.
  StringId name_like(StringId own, PyObject* original) {
    const StringId first = name_writer_.table().create(own);
    const StringId wanted = name_writer_.candidate(original);
    if (first == wanted) return first;
    writer_.take_name(first);
    return name_writer_.table().create(wanted);
  }

  PyObject* write_placeholder(uint32_t i) {
    const size_t number = placeholders_++;
    if (number >= static_cast<size_t>(PyList_GET_SIZE(plan_.places.get()))) {
      raise(PyExc_ValueError, "expected %zd placeholders in the captured graph, found more",
            PyList_GET_SIZE(plan_.places.get()));
    }
    PyObject* place = PyList_GET_ITEM(plan_.places.get(), static_cast<Py_ssize_t>(number));
    const Ref name = fx::node_field(source_.nodes[i], fx::symbols.node_name);
    if (PyLong_Check(place)) {
      const size_t input = input_number(place, inputs_.size());
      if (PyUnicode_Compare(input_names_[input].get(), name.get()) != 0) {
        const StringId made = name_writer_.table().create(name_writer_.candidate(name.get()));
        writer_.rename(inputs_[input], name_writer_.string(made));
      }
      return inputs_[input];
    }
    if (PyUnicode_Check(place)) {
      const StringId own = name_writer_.candidate_for_target(place);
      const fx::NewNode node = {Op::kGetAttr, place, {}, Py_None, name_like(own, name.get())};
      return writer_.leaf(node, Ref::borrow(fx::no_args),
                          fx::GraphWriter::copy_meta(source_.nodes[i]));
    }
    Ref meta = Ref::steal(PyDict_New());
    const Ref before = dict_of_meta(source_.nodes[i]);
    for (PyObject* key : {fx::names.val, fx::names.example_value, fx::names.unbacked_bindings}) {
      PyObject* value = dict_get(before.get(), key);
      if (value != nullptr) check(PyDict_SetItem(meta.get(), key, value));
    }
    return write(i, source_.targets[source_.graph.targets[i]], std::move(meta));
  }

  PyObject* write_copy(uint32_t i) {
    PyObject* target = source_.targets[source_.graph.targets[i]];
    if (source_.graph.ops[i] == Op::kCallModule) {
      PyObject* path = dict_get(plan_.module_paths.get(), target);
      if (path == nullptr) {
        raise(PyExc_KeyError, "node %R calls module %R, which does not have a path",
              source_.nodes[i], target);
      }
      target = path;
    }
    return write(i, target, birth_.of(source_.nodes[i]));
  }

  PyObject* write(uint32_t i, PyObject* target, Ref meta) {
    const Op op = source_.graph.ops[i];
    fx::NewNode node = {op, target, {}, Py_None};
    const Ref name = fx::node_field(source_.nodes[i], fx::symbols.node_name);
    node.name = name_like(name_writer_.candidate_for_target(target), name.get());
    Ref cleaned;
    if (op == Op::kGetAttr) {
      cleaned = clean_name(target);
      if (cleaned.get() != target) {
        check(PyDict_SetItem(renamed_.get(), cleaned.get(), target));
        node.target = cleaned.get();
      }
    }
    return writer_.copy_node(
        node, source_, NodeId(i), [&](NodeId def) { return copy_of(def.value()); },
        std::move(meta));
  }

  PyObject* copy_of(uint32_t i) const {
    if (copies_[i] == nullptr) {
      raise(PyExc_RuntimeError,
            "node %R is used before it is defined: the graph is not in topological order",
            source_.nodes[i]);
    }
    return copies_[i];
  }

  void write_output() {
    const uint32_t last = static_cast<uint32_t>(source_.graph.size()) - 1;
    if (source_.graph.size() == 0 || source_.graph.ops[last] != Op::kOutput) {
      raise(PyExc_ValueError, "expected an output node at the end of the captured graph");
    }
    PyObject* old = source_.nodes[last];
    const Ref computed = fx::returned_value(old);
    std::vector<Ref> values;
    values.reserve(static_cast<size_t>(PyList_GET_SIZE(plan_.outputs.get())));
    for (Py_ssize_t i = 0; i < PyList_GET_SIZE(plan_.outputs.get()); ++i) {
      values.push_back(output_value(PyList_GET_ITEM(plan_.outputs.get(), i), computed.get()));
    }
    PyObject* made = writer_.output(take_as_tuple(values).get(), [&](PyObject* node) {
      const uint32_t known = source_.nodes.find(node);
      return known == core::FlatMap::kAbsent ? node : copy_of(known);
    });
    fx::set_node_field(made, fx::symbols.node_meta, fx::GraphWriter::copy_meta(old).get());
  }

  Ref output_value(PyObject* planned, PyObject* computed) const {
    if (!PyTuple_Check(planned) || PyTuple_GET_SIZE(planned) != 2) {
      raise(PyExc_TypeError, "expected a pair (kind, value) for each output, found %R", planned);
    }
    PyObject* value = PyTuple_GET_ITEM(planned, 1);
    switch (static_cast<CapturedOutput>(to_long(PyTuple_GET_ITEM(planned, 0)))) {
      case CapturedOutput::kComputed:
        return Ref::steal(PyObject_GetItem(computed, value));
      case CapturedOutput::kInput:
        return Ref::borrow(inputs_[input_number(value, inputs_.size())]);
      case CapturedOutput::kConstant:
        break;
    }
    return Ref::borrow(value);
  }

  PyObject* module_;
  const RewritePlan& plan_;
  Ref old_graph_;
  fx::ReadGraph source_;
  BirthMeta birth_;
  fx::NameWriter name_writer_;
  fx::GraphWriter writer_;
  std::vector<PyObject*> copies_;  // by node of the captured graph: its copy; borrowed
  std::vector<PyObject*> inputs_;  // the placeholders of the flat inputs; borrowed
  std::vector<Ref> input_names_;   // names of inputs_ before write_placeholder() changes them
  Ref renamed_;                    // dict from the new to the old target of a get_attr
  size_t placeholders_ = 0;        // number of visited placeholders of the captured graph
};

}  // namespace

Ref rewrite_captured(PyObject* module, const RewritePlan& plan) {
  const GcPause pause;
  return Rewriter(module, plan).run();
}

}  // namespace fxpress::capture
