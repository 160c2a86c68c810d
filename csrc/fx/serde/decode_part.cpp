#include "fx/containers.h"
#include "fx/gc_pause.h"
#include "fx/serde/decoder.h"
#include "fx/serde/scalars.h"
#include "fx/serde/symbols.h"
#include "fx/symbols.h"

namespace fxpress::fx::serde {

namespace {

template <class Each>
void each_name(const core::StringPool& pool, size_t count, Each each) {
  for (uint32_t i = 0; i < count; ++i) each(i, pool.text(core::StringId(i)));
}

}  // namespace

// Name in the file -> node.
Ref Decoder::nodes() const {
  Ref result = Ref::steal(PyDict_New());
  each_name(state_->pool, state_->defined.size(), [&](size_t i, std::string_view name) {
    PyObject* node = state_->defined[i].node;
    if (node != nullptr) check(PyDict_SetItem(result.get(), new_text(name).get(), node));
  });
  return result;
}

// The names that the tables define.
Ref Decoder::value_names() const {
  Ref result = Ref::steal(PyList_New(0));
  each_name(state_->pool, state_->defined.size(), [&](size_t i, std::string_view name) {
    if (state_->defined[i].meta == nullptr) return;
    check(PyList_Append(result.get(), new_text(name).get()));
  });
  return result;
}

// The root of the document is the part. `extra` by kind:
//   node, inputs   a target as resolve_target() describes it
//   outputs        (such a target, the node that returns them)
//   result         (the node that returns it among others, its place)
Ref Decoder::part(std::string_view kind, PyObject* extra) {
  const GcPause pause;
  const Value& value = document_->root();
  const auto item = [&](Py_ssize_t i) { return PyTuple_GET_ITEM(extra, i); };
  if (kind == "tensor") return tensor(value);
  if (kind == "input_spec") return input_spec(value);
  if (kind == "output_spec") return output_spec(value);
  if (kind == "argument_spec") return argument_spec(value);
  if (kind == "signature") return signature(value);
  if (kind == "call_signature") return call_signature(value);
  if (kind == "metadata") {
    Ref result = Ref::steal(PyDict_New());
    add_metadata(metadata(field(value, Field::Node_metadata)), result.get());
    return result;
  }

  // Kinds that may add nodes.
  state_->writer.resume();
  is_open_ = true;
  struct Close {
    Decoder& decoder;
    ~Close() { decoder.is_open_ = false; }
  } const closes{*this};
  inputs_.clear();
  graphs_.clear();
  Ref result = Ref::borrow(Py_None);
  if (kind == "argument") {
    result = argument(value);
  } else if (kind == "inputs") {
    Ref kwargs = Ref::steal(PyDict_New());
    const Ref args = node_arguments(document_->children(field(value, Field::Node_inputs)),
                                    TargetTable::described(extra), kwargs);
    result = Ref::steal(PyTuple_Pack(2, args.get(), kwargs.get()));
  } else if (kind == "node") {
    result = Ref::borrow(node(value, TargetTable::described(extra)));
  } else if (kind == "outputs") {
    results(value, TargetTable::described(item(0)), item(1),
            metadata(field(value, Field::Node_metadata)));
  } else if (kind == "result") {
    const size_t place = PyLong_AsSize_t(item(1));
    if (PyErr_Occurred() != nullptr) throw_python_error();
    result = take(item(0), place, value, {});
  } else {  // "graph"
    write_graph(value);
    return Ref::borrow(state_->writer.graph());
  }
  state_->writer.finish();
  return result;
}

}  // namespace fxpress::fx::serde
