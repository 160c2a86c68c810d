#include <algorithm>

#include "core/characters.h"
#include "core/check.h"
#include "fx/arguments.h"
#include "fx/reader.h"
#include "fx/symbols.h"
#include "py/calls.h"
#include "unflatten/write.h"

namespace fxpress::unflatten {

using core::Op;

FrameWriter::FrameWriter(const UnflattenPlan& plan, fx::NameWriter& name_writer)
    : plan_(plan),
      names_(name_writer),
      nodes_(plan.outline.nodes.size(), nullptr),
      name_(plan.outline.nodes.size()) {}

Ref FrameWriter::write(FrameId frame, Ref into, std::vector<Ref>& call_nodes) {
  argument_names_.clear();
  fx::GraphWriter writer(names_, into ? std::move(into) : fx::new_graph());
  name_nodes(writer, frame);
  for (PlannedId id : plan_.outline.order(frame)) {
    poll_signals(id.value());
    PyObject* node = write_node(writer, id);
    nodes_[id.value()] = node;
    const Planned kind = planned(id).kind;
    if (kind == Planned::kCall) call_nodes[planned(id).index] = Ref::borrow(node);
    if (kind == Planned::kInput || kind == Planned::kArgument || kind == Planned::kPlaceholder) {
      argument_names_.push_back(fx::node_field(node, fx::symbols.node_target));
    }
  }
  writer.finish();
  return Ref::borrow(writer.graph());
}

// Names the nodes of a call's graph as torch does. The names depend on the order in which torch
// creates the nodes, which is not the order of the graph, and on nodes that torch erases later.
void FrameWriter::name_nodes(fx::GraphWriter& writer, FrameId frame) {
  for (PlannedId id : plan_.outline.frames[frame.value()].created) {
    name_[id.value()] = names_.table().create(candidate(id));
    if (planned(id).removed) writer.take_name(name_[id.value()]);
  }
}

// Returns the target of a node that does not call a function.
Ref FrameWriter::own_target(PlannedId id) const {
  const PlannedNode& node = planned(id);
  const core::StringPool& strings = plan_.program.strings;
  switch (node.kind) {
    case Planned::kInput:
      return Ref::borrow(plan_.program.names[node.source.value()].get());
    case Planned::kState:
      return Ref::borrow(plan_.program.string(node.path));
    case Planned::kSpec:
      return Ref::steal(PyUnicode_FromFormat("_spec_%u", node.index));
    case Planned::kArgument: {
      const CallSignature& signature = signature_of(node);
      if (node.index < signature.positional) {
        return Ref::steal(PyUnicode_FromFormat("_positional_arg_%u", node.index));
      }
      return new_string(strings.text(signature.keywords[node.index - signature.positional]));
    }
    case Planned::kCall:
      return Ref::borrow(plan_.program.string(plan_.outline.frames[node.index].target));
    default:
      FXPRESS_CHECK(false, "a planned node of this type does not have a target");
  }
}

StringId FrameWriter::candidate(PlannedId id) {
  const PlannedNode& node = planned(id);
  const core::StringPool& strings = plan_.program.strings;
  switch (node.kind) {
    case Planned::kCopy:
    case Planned::kPlaceholder:
      return names_.candidate(plan_.program.names[node.source.value()].get());
    case Planned::kRecompute:
      return names_.candidate_for_target(plan_.program.target(node.source));
    case Planned::kInputLeaf: {
      const SignatureLeaf& leaf = signature_of(node).inputs[node.index];
      const Ref name = leaf.constant.valid()
                           ? Ref::steal(PyUnicode_FromFormat("_constant_%u", node.index))
                           : new_string(strings.text(leaf.name));
      return names_.candidate(name.get());
    }
    case Planned::kCall: {
      // The candidate is the target that the call had before merge_calls() changed it.
      const CallFrame& callee = plan_.outline.frames[node.index];
      const std::string_view caller = strings.text(plan_.outline.frames[node.frame.value()].path);
      const std::string_view called = relative(strings.text(callee.call_name), caller);
      const bool is_ascii = std::all_of(called.begin(), called.end(), core::is_ascii);
      return is_ascii ? names_.candidate_for_text(called)
                      : names_.candidate_for_target(new_string(called).get());
    }
    case Planned::kFlattenInputs:
    case Planned::kFlattenOutputs:
      return names_.candidate_for_target(fx::symbols.tree_flatten_spec);
    case Planned::kUnflattenInputs:
    case Planned::kUnflattenOutputs:
      return names_.candidate_for_target(fx::symbols.tree_unflatten);
    case Planned::kItem:
    case Planned::kKeywordItem:
    case Planned::kOutputItem:
      return names_.candidate_for_target(fx::symbols.getitem);
    case Planned::kWriteBack:
      return names_.candidate_for_target(fx::symbols.copy_);
    case Planned::kOutput:
      return names_.candidate_for_target(fx::symbols.output);
    default:
      return names_.candidate_for_target(own_target(id).get());
  }
}

const CallSignature& FrameWriter::signature_of(const PlannedNode& node) const {
  return plan_.signatures.calls[plan_.outline.frames[node.frame.value()].signature];
}

PyObject* FrameWriter::written(PlannedId id) const {
  PyObject* node = nodes_[plan_.outline.resolve(id).value()];
  FXPRESS_CHECK(node != nullptr, "a node is used before it is written");
  return node;
}

std::vector<PyObject*> FrameWriter::inputs_of(PlannedId id) const {
  std::vector<PyObject*> inputs;
  for (PlannedId input : plan_.outline.inputs_of(id)) inputs.push_back(written(input));
  return inputs;
}

// ---- meta ----

Ref FrameWriter::meta_of(NodeId source) const {
  return fx::GraphWriter::copy_meta(plan_.program.original(source));
}

Ref FrameWriter::value_of(NodeId source) const {
  Ref value = fx::find_meta(plan_.program.original(source), fx::names.val);
  return value ? std::move(value) : Ref::borrow(Py_None);
}

Ref FrameWriter::value_meta(Ref value) const {
  Ref meta = Ref::steal(PyDict_New());
  check(PyDict_SetItem(meta.get(), fx::names.val, value.get()));
  return meta;
}

void FrameWriter::adjust_meta(PyObject* node, PlannedId id) const {
  const PlannedNode& node_plan = planned(id);
  const auto cut =
      plan_.program.cut_stacks.find(plan_.program.origin[node_plan.source.value()].value());
  if (cut == plan_.program.cut_stacks.end() && !node_plan.lose_custom) return;
  const Ref meta = fx::node_field(node, fx::symbols.node_meta);
  if (cut != plan_.program.cut_stacks.end()) {
    check(PyDict_SetItem(meta.get(), fx::names.nn_module_stack, cut->second.get()));
  }
  if (node_plan.lose_custom) check(PyDict_DelItem(meta.get(), fx::names.custom));
}

// ---- nodes ----

PyObject* FrameWriter::write_node(fx::GraphWriter& writer, PlannedId id) {
  const PlannedNode& node = planned(id);
  switch (node.kind) {
    case Planned::kCopy:
    case Planned::kPlaceholder:
    case Planned::kRecompute: {
      PyObject* copy = plan_.program.kinds[node.source.value()] == FlatKind::kOriginal
                           ? write_copy(writer, id)
                           : write_added(writer, id);
      adjust_meta(copy, id);
      return copy;
    }
    case Planned::kInput:
      return write_leaf(writer, id, Op::kPlaceholder, meta_of(node.source));
    case Planned::kState:
      return write_leaf(writer, id, Op::kGetAttr, meta_of(node.source));
    case Planned::kArgument:
      return write_leaf(writer, id, Op::kPlaceholder, {});
    case Planned::kSpec:
      return write_leaf(writer, id, Op::kGetAttr, {});
    case Planned::kFlattenInputs:
      return write_flatten_inputs(writer, id);
    case Planned::kUnflattenInputs:
      return write_unflatten(writer, id, false);
    case Planned::kUnflattenOutputs:
      return write_unflatten(writer, id, true);
    case Planned::kFlattenOutputs: {
      const auto inputs = inputs_of(id);
      return write_function(writer, id, fx::symbols.tree_flatten_spec, new_tuple(inputs), inputs,
                            value_meta(Ref::borrow(Py_None)));
    }
    case Planned::kInputLeaf:
      return write_item(writer, id, Ref::steal(PyLong_FromSize_t(node.index)),
                        node.source.valid() ? meta_of(node.source) : Ref());
    case Planned::kItem:
      return write_item(writer, id, Ref::steal(PyLong_FromSize_t(node.index)), {});
    case Planned::kKeywordItem:
      return write_item(writer, id, new_string(plan_.program.strings.text(StringId(node.index))),
                        {});
    case Planned::kOutputItem:
      return write_item(writer, id, Ref::steal(PyLong_FromSize_t(node.index)),
                        value_meta(value_of(node.source)));
    case Planned::kWriteBack: {
      const auto inputs = inputs_of(id);
      return write_function(writer, id, fx::symbols.copy_, new_tuple(inputs), inputs,
                            meta_of(node.source));
    }
    case Planned::kCall:
      return write_call(writer, id);
    case Planned::kOutput:
      return write_output(writer, id);
  }
  FXPRESS_CHECK(false, "unknown type of planned node");
}

PyObject* FrameWriter::write_copy(fx::GraphWriter& writer, PlannedId id) {
  const PlannedNode& node = planned(id);
  if (plan_.program.graph.ops[node.source.value()] == Op::kOutput) {
    return write_root_output(writer, id);
  }
  PyObject* original = plan_.program.original(node.source);
  const Ref type_expr = fx::node_field(original, fx::symbols.node_type_expr);
  const fx::NewNode copy{plan_.program.graph.ops[node.source.value()],
                         plan_.program.target(node.source), StringId(), type_expr.get(),
                         name_[id.value()]};
  fx::InputCursor inputs(plan_.outline.inputs_of(id));
  PyObject* made = writer.copy(copy, original, [&](PyObject*) { return written(inputs.next()); });
  inputs.finish();
  return made;
}

// Writes a node that read_program() added: a copy_, or the detach or clone before a copy_.
PyObject* FrameWriter::write_added(fx::GraphWriter& writer, PlannedId id) {
  const PlannedNode& node = planned(id);
  const FlatKind kind = plan_.program.kinds[node.source.value()];
  PyObject* function = kind == FlatKind::kWrite    ? fx::symbols.copy_
                       : kind == FlatKind::kDetach ? fx::symbols.detach
                                                   : fx::symbols.clone;
  const auto inputs = inputs_of(id);
  return write_function(writer, id, function, new_tuple(inputs), inputs, meta_of(node.source));
}

PyObject* FrameWriter::write_root_output(fx::GraphWriter& writer, PlannedId id) {
  const PlannedNode& node = planned(id);
  PyObject* original = plan_.program.original(node.source);
  Ref kept = fx::returned_value(original);
  if (plan_.program.is_exported) {
    const Ref all = Ref::steal(PySequence_Tuple(kept.get()));
    const auto skip = static_cast<Py_ssize_t>(plan_.program.skipped_outputs);
    kept = Ref::steal(PyTuple_GetSlice(all.get(), skip, PyTuple_GET_SIZE(all.get())));
  }
  fx::InputCursor inputs(plan_.outline.inputs_of(id));
  PyObject* output = writer.output(
      kept.get(), [&](PyObject*) { return written(inputs.next()); }, name_[id.value()]);
  inputs.finish();
  fx::set_node_field(output, fx::symbols.node_meta, meta_of(node.source).get());
  return output;
}

PyObject* FrameWriter::write_output(fx::GraphWriter& writer, PlannedId id) {
  const auto inputs = inputs_of(id);
  const Ref value = inputs.size() == 1 ? Ref::borrow(inputs[0])
                                       : Ref::steal(PySequence_List(new_tuple(inputs).get()));
  return writer.output(value.get(), [](PyObject* node) { return node; }, name_[id.value()]);
}

PyObject* FrameWriter::write_leaf(fx::GraphWriter& writer, PlannedId id, Op op, Ref meta) {
  const Ref target = own_target(id);
  Ref type_expr = Ref::borrow(Py_None);
  if (planned(id).kind == Planned::kInput) {
    type_expr =
        fx::node_field(plan_.program.original(planned(id).source), fx::symbols.node_type_expr);
  }
  return writer.leaf({op, target.get(), StringId(), type_expr.get(), name_[id.value()]},
                     Ref::borrow(fx::no_args), std::move(meta));
}

PyObject* FrameWriter::write_function(fx::GraphWriter& writer, PlannedId id, PyObject* function,
                                      Ref args, std::span<PyObject* const> inputs, Ref meta) {
  return writer.create({Op::kCallFunction, function, StringId(), Py_None, name_[id.value()]},
                       std::move(args), Ref::borrow(fx::no_kwargs), inputs, std::move(meta));
}

PyObject* FrameWriter::write_item(fx::GraphWriter& writer, PlannedId id, Ref key, Ref meta) {
  PyObject* value = written(plan_.outline.inputs_of(id)[0]);
  Ref args = Ref::steal(PyTuple_Pack(2, value, key.get()));
  return write_function(writer, id, fx::symbols.getitem, std::move(args), {&value, 1},
                        std::move(meta));
}

// Returns the immutable dict {keys[i]: values[i]}. Ignores values after the last key's value.
Ref FrameWriter::keyword_arguments(const std::vector<StringId>& keys,
                                   std::span<PyObject* const> values) const {
  const Ref dict = Ref::steal(PyDict_New());
  for (size_t i = 0; i < keys.size(); ++i) {
    const Ref key = new_string(plan_.program.strings.text(keys[i]));
    check(PyDict_SetItem(dict.get(), key.get(), values[i]));
  }
  return call(fx::symbols.immutable_dict_type, dict);
}

// Writes tree_flatten_spec((args, kwargs), spec).
PyObject* FrameWriter::write_flatten_inputs(fx::GraphWriter& writer, PlannedId id) {
  const CallSignature& signature = signature_of(planned(id));
  const auto inputs = inputs_of(id);
  const std::span<PyObject* const> all(inputs);
  const Ref args = new_tuple(all.first(signature.positional));
  const Ref kwargs = keyword_arguments(signature.keywords, all.subspan(signature.positional));
  const Ref both = Ref::steal(PyTuple_Pack(2, args.get(), kwargs.get()));
  return write_function(writer, id, fx::symbols.tree_flatten_spec,
                        Ref::steal(PyTuple_Pack(2, both.get(), all.back())), inputs, {});
}

// Writes tree_unflatten(leaves, spec); the leaves include the constants of the signature.
PyObject* FrameWriter::write_unflatten(fx::GraphWriter& writer, PlannedId id, bool outputs) {
  const CallSignature& signature = plan_.signatures.calls[planned(id).index];
  const auto& leaves = outputs ? signature.outputs : signature.inputs;
  const auto inputs = plan_.outline.inputs_of(id);
  std::vector<PyObject*> values;
  std::vector<PyObject*> used;
  for (size_t i = 0; i < leaves.size(); ++i) {
    if (inputs[i].valid()) {
      values.push_back(written(inputs[i]));
      used.push_back(values.back());
    } else if (leaves[i].constant.valid()) {
      values.push_back(plan_.signatures.constants[leaves[i].constant.value()].get());
    } else {
      values.push_back(Py_None);
    }
  }
  used.push_back(written(inputs.back()));
  Ref sequence = new_tuple(values);
  if (!outputs) {
    sequence = call(fx::symbols.immutable_list_type, sequence);
  }
  Ref args = Ref::steal(PyTuple_Pack(2, sequence.get(), used.back()));
  return write_function(writer, id, fx::symbols.tree_unflatten, std::move(args), used, {});
}

PyObject* FrameWriter::write_call(fx::GraphWriter& writer, PlannedId id) {
  const PlannedNode& node = planned(id);
  const CallFrame& callee = plan_.outline.frames[node.index];
  std::vector<PyObject*> arguments;
  for (size_t k = callee.front.size(); k-- > 0;) {
    if (!planned(callee.front[k]).removed) arguments.push_back(written(callee.passed[k]));
  }
  const auto own = inputs_of(id);
  std::vector<StringId> keywords;
  if (callee.signature != CallFrame::kNoSignature) {
    keywords = plan_.signatures.calls[callee.signature].keywords;
  }
  const size_t positional = own.size() - keywords.size();
  // Sort the node's inputs (Node.all_input_nodes) as torch does. torch inserts passed values one by
  // one at the front of Node.args, and each new value is appended to the inputs. For exported
  // programs, torch later assigns Node.args again, which sorts the inputs like the args.
  std::vector<PyObject*> inputs = own;
  if (plan_.program.is_exported) {
    inputs.insert(inputs.begin(), arguments.begin(), arguments.end());
  } else {
    inputs.insert(inputs.end(), arguments.rbegin(), arguments.rend());
  }
  arguments.insert(arguments.end(), own.begin(), own.begin() + static_cast<ptrdiff_t>(positional));
  Ref args = new_tuple(arguments);
  Ref kwargs = keywords.empty() ? Ref::borrow(fx::no_kwargs)
                                : keyword_arguments(keywords, std::span(own).subspan(positional));

  // A call with a preserved signature has no meta["val"]. The items of its flattened result do.
  Ref meta;
  if (callee.signature != CallFrame::kNoSignature) {
    meta = Ref::steal(PyDict_New());
  } else if (callee.outputs.size() == 1) {
    meta = value_meta(value_of(callee.outputs[0]));
  } else {
    meta = value_meta(
        make_list(callee.outputs.size(), [&](size_t i) { return value_of(callee.outputs[i]); }));
  }
  if (node.custom != 0) {
    check(
        PyDict_SetItem(meta.get(), fx::names.custom, plan_.program.custom_meta[node.custom].get()));
  }
  const Ref target = own_target(id);
  return writer.create({Op::kCallModule, target.get(), StringId(), Py_None, name_[id.value()]},
                       std::move(args), std::move(kwargs), inputs, std::move(meta));
}

}  // namespace fxpress::unflatten
