#include "unflatten/compare.h"

#include <algorithm>

#include "fx/arg_walk.h"
#include "fx/arguments.h"
#include "fx/symbols.h"

namespace fxpress::unflatten {

using core::FrameId;
using core::Op;
using core::PlannedId;

namespace {

void append_number(std::string& out, uint64_t number) {
  out += std::to_string(number);
  out += ' ';
}

}  // namespace

bool FrameComparer::same(FrameId a, FrameId b) {
  if (graph_of_.empty()) {
    graph_of_.resize(plan_.outline.frames.size());
    position_.resize(plan_.outline.nodes.size());
    // Callers come before what they call.
    for (size_t i = graph_of_.size(); i-- > 1;) dump(FrameId(i));
  }
  return graph_of_[a.value()] == graph_of_[b.value()];
}

void FrameComparer::dump(FrameId frame) {
  std::string text;
  uint32_t position = 0;
  for (PlannedId id : plan_.outline.order(frame)) {
    dump_node(id, text);
    text += '\n';
    position_[id.value()] = position++;
  }
  const auto number = static_cast<uint32_t>(graphs_.size());
  graph_of_[frame.value()] = graphs_.emplace(std::move(text), number).first->second;
}

void FrameComparer::dump_node(PlannedId id, std::string& out) {
  const PlannedNode& node = plan_.outline.node(id);
  const bool is_original = (node.kind == Planned::kCopy || node.kind == Planned::kRecompute ||
                            node.kind == Planned::kPlaceholder) &&
                           plan_.program.kinds[node.source.value()] == FlatKind::kOriginal;
  if (!is_original) {
    const Planned kind = node.kind == Planned::kInput ? Planned::kArgument : node.kind;
    out += "planned ";
    append_number(out, static_cast<uint64_t>(kind));
    if (kind == Planned::kCopy) {
      append_number(out, static_cast<uint64_t>(plan_.program.kinds[node.source.value()]));
    }
    if (kind == Planned::kState) append_number(out, node.path.value());
    if (kind == Planned::kCall) {
      const Frame& callee = plan_.outline.frames[node.index];
      append_number(out, callee.key.value());
      append_number(out, graph_of_[node.index]);
      for (size_t k = callee.front.size(); k-- > 0;) {
        if (plan_.outline.node(callee.front[k]).removed) continue;
        append_number(out, position_[plan_.outline.resolve(callee.passed[k]).value()]);
      }
    } else if (kind != Planned::kArgument && kind != Planned::kUnflattenInputs &&
               kind != Planned::kUnflattenOutputs) {
      append_number(out, node.index);
    }
    if (kind == Planned::kUnflattenInputs || kind == Planned::kUnflattenOutputs) {
      const auto& signature = plan_.signatures.calls[node.index];
      for (const auto& leaf :
           kind == Planned::kUnflattenInputs ? signature.inputs : signature.outputs) {
        if (!leaf.constant.valid()) continue;
        dump_text(plan_.signatures.constants[leaf.constant.value()].get(), out);
      }
    }
    dump_inputs(id, out);
    return;
  }
  const Op op = plan_.program.graph.ops[node.source.value()];
  append_number(out, static_cast<uint64_t>(op));
  if (op == Op::kPlaceholder) return;
  if (op == Op::kCallFunction) {
    append_number(out, reinterpret_cast<uintptr_t>(plan_.program.target(node.source)));
  } else if (op == Op::kGetAttr) {
    dump_text(plan_.program.target(node.source), out);
  }
  fx::InputCursor inputs(plan_.outline.inputs_of(id), "unflatten");
  PyObject* original = plan_.program.original(node.source);
  dump_arguments(fx::args_of(original).get(), inputs, out);
  dump_arguments(fx::kwargs_of(original).get(), inputs, out);
  inputs.finish();
}

void FrameComparer::dump_inputs(PlannedId id, std::string& out) {
  for (PlannedId input : plan_.outline.inputs_of(id)) {
    out += '%';
    if (input.valid()) append_number(out, position_[plan_.outline.resolve(input).value()]);
  }
}

void FrameComparer::dump_arguments(PyObject* object, fx::InputCursor<PlannedId>& inputs,
                                   std::string& out) {
  // Texts run Python code, which may take any container out of the one around it.
  struct Open {
    ArgCursor cursor;
    Ref held;  // the container
  };
  std::vector<Open> stack;
  std::vector<Ref> known;  // containers that the trail has noted: their addresses stay their own
  fx::ArgTrail trail;
  const auto enter = [&](PyObject* item) {
    if (fx::is_node(item)) {
      out += '%';
      append_number(out, position_[plan_.outline.resolve(inputs.next()).value()]);
      return;
    }
    const ArgKind kind = arg_kind(item);
    if (kind == ArgKind::kLeaf) {
      dump_text(item, out);
      return;
    }
    const auto at = [&](size_t i) { return stack[i].cursor.container; };
    if (!trail.enter(item, stack.size(), at)) {
      out += '^';  // a part that was there before
      return;
    }
    out += '(';
    append_number(out, static_cast<uint64_t>(kind));
    stack.push_back({{item, kind}, Ref::borrow(item)});
  };
  enter(object);
  while (!stack.empty()) {
    PyObject* key = nullptr;
    const Ref child = Ref::borrow(stack.back().cursor.next(&key));
    if (!child) {
      out += ')';
      trail.leave(stack.back().cursor.container);
      if (trail.notes()) known.push_back(std::move(stack.back().held));
      stack.pop_back();
      continue;
    }
    if (key != nullptr) dump_text(Ref::borrow(key).get(), out);
    enter(child.get());
  }
}

void FrameComparer::dump_text(PyObject* object, std::string& out) {
  const Ref text = Ref::steal(PyObject_Str(object));
  const std::string_view characters = utf8(text.get());
  append_number(out, characters.size());  // so that no text can end early
  out += PyUnicode_Check(object) != 0 ? '"' : ' ';
  out += characters;
}

}  // namespace fxpress::unflatten
