#include <cctype>

#include "core/budget.h"
#include "fx/symbols.h"
#include "py/calls.h"
#include "py/containers.h"
#include "schema/json_writer.h"
#include "serde/graph_encoder.h"
#include "serde/scalars.h"
#include "serde/symbols.h"

namespace fxpress::serde {

namespace {

// Returns dict[key], or an empty Ref. The Ref owns the value, because Python may change the dict.
Ref value_of(PyObject* dict, PyObject* key) {
  return Ref::borrow(dict_get(dict, key));
}

// Like value_of(), but empty for a value that is false in Python.
Ref true_value_of(PyObject* dict, PyObject* key) {
  Ref value = value_of(dict, key);
  return value && is_true(value.get()) ? std::move(value) : Ref();
}

// Appends a value as an f-string formats it.
void append(std::string& to, PyObject* value) {
  if (PyUnicode_CheckExact(value)) {
    to += Text(value).view();
  } else {
    to += Text(Ref::steal(PyObject_Format(value, nullptr)).get()).view();
  }
}

}  // namespace

void GraphEncoder::metadata(PyObject* node) {
  const Ref held = fx::node_field(node, fx::symbols.node_meta);
  PyObject* meta = held.get();
  sink_.begin_map();
  const auto write = [&](const char* key, PyObject* name, auto&& write_value) {
    const Ref value = true_value_of(meta, name);
    if (!value) return;
    sink_.key(key);
    write_value(value.get());
  };
  write("stack_trace", fx::names.stack_trace, [&](PyObject* trace) { out_.string(trace); });
  write("nn_module_stack", fx::names.nn_module_stack,
        [&](PyObject* stack) { module_stack(stack); });
  write("source_fn_stack", fx::names.source_fn_stack,
        [&](PyObject* stack) { source_functions(stack); });
  write("torch_fn", fx::names.torch_fn, [&](PyObject* function) {
    const Ref parts = Ref::steal(PySequence_Tuple(function));
    scratch_.clear();
    for (Py_ssize_t i = 0; i < PySequence_Fast_GET_SIZE(parts.get()); ++i) {
      if (i != 0) scratch_ += ';';
      scratch_ += Text(PySequence_Fast_GET_ITEM(parts.get(), i)).view();
    }
    sink_.string(scratch_);
  });
  write("custom", fx::names.custom,
        [&](PyObject* custom) { out_.string(call(symbols.dumps, custom, node).get()); });
  if (const Ref sources = value_of(meta, fx::names.from_node)) {
    sink_.key("from_node");
    std::string text;
    node_sources(sources.get(), text);
    sink_.string(text);
  }
  sink_.end_map();
}

void GraphEncoder::module_stack(PyObject* stack) {
  scratch_.clear();
  const auto add = [&](PyObject* key, PyObject* entry) {
    if (!PyTuple_Check(entry) || PyTuple_GET_SIZE(entry) != 2 ||
        !PyUnicode_Check(PyTuple_GET_ITEM(entry, 0)) ||
        !PyUnicode_Check(PyTuple_GET_ITEM(entry, 1))) {
      raise(PyExc_AssertionError, "expected a module stack of (path, type name), got %R", entry);
    }
    if (!scratch_.empty()) scratch_ += ';';
    append(scratch_, key);
    scratch_ += ',';
    scratch_ += Text(PyTuple_GET_ITEM(entry, 0)).view();
    scratch_ += ',';
    scratch_ += Text(PyTuple_GET_ITEM(entry, 1)).view();
  };
  if (PyDict_CheckExact(stack)) {
    for (DictItems items(stack); items.next();) add(items.key(), items.value());
  } else {
    const Ref items = pairs_of(stack);
    for (PyObject* item : items_of(items.get())) {
      add(PyTuple_GET_ITEM(item, 0), PyTuple_GET_ITEM(item, 1));
    }
  }
  sink_.string(scratch_);
}

void GraphEncoder::append_operator_name(PyObject* target) {
  if (PyUnicode_Check(target)) {
    scratch_ += Text(target).view();
    return;
  }
  scratch_ += operator_names_.get(target, [&] {
    const Ref name = call(symbols.operator_name, target);
    return std::string(Text(name.get()).view());
  });
}

void GraphEncoder::source_functions(PyObject* stack) {
  const Ref held = Ref::steal(PySequence_Tuple(stack));
  scratch_.clear();
  for (Py_ssize_t i = 0; i < PySequence_Fast_GET_SIZE(held.get()); ++i) {
    const Ref pair = Ref::steal(PySequence_Fast(PySequence_Fast_GET_ITEM(held.get(), i),
                                                "an entry of source_fn_stack is not a pair"));
    if (PySequence_Fast_GET_SIZE(pair.get()) < 2) {
      raise(PyExc_IndexError, "an entry of source_fn_stack is not a pair");
    }
    if (i != 0) scratch_ += ';';
    append(scratch_, PySequence_Fast_GET_ITEM(pair.get(), 0));
    scratch_ += ',';
    append_operator_name(PySequence_Fast_GET_ITEM(pair.get(), 1));
  }
  sink_.string(scratch_);
}

void GraphEncoder::node_sources(PyObject* sources, std::string& text) {
  if (sources == Py_None) {
    text += "null";
    return;
  }
  const Ref held = Ref::steal(PySequence_Tuple(sources));
  bool first = true;
  text += '[';
  for (PyObject* source : items_of(held.get())) {
    if (!is_a(source, symbols.node_source_type)) continue;
    if (!first) text += ", ";
    first = false;
    node_source(source, text);
  }
  text += ']';
}

// Returns the number that identifies a graph in the file. torch writes the graph's address. fxpress
// counts from 0, so that equal exports have equal bytes.
int64_t GraphEncoder::graph_number(PyObject* graph_id) {
  const long long id = PyLong_AsLongLong(graph_id);
  if (id == -1) {
    if (PyErr_Occurred() != nullptr) throw_python_error();
    return -1;  // a NodeSource without a node
  }
  return graph_numbers_.emplace(id, static_cast<int64_t>(graph_numbers_.size())).first->second;
}

void GraphEncoder::node_source(PyObject* source, std::string& text) {
  const RecursionGuard guard(" in from_node");
  core::check_stack("from_node");
  schema::StringBuffer buffer;
  const auto quoted = [&](PyObject* value) {
    if (value == Py_None) return buffer.append("null");
    schema::write_json_string(buffer, Text(value).view());
  };
  buffer.append("{\"name\": ");
  quoted(get_attr(source, fx::names.name).get());
  buffer.append(", \"target\": ");
  quoted(get_attr(source, fx::names.target).get());
  buffer.append(", \"graph_id\": ");
  schema::write_json_integer(buffer, graph_number(get_attr(source, fx::names.graph_id).get()));
  buffer.append(", \"pass_name\": ");
  quoted(get_attr(source, fx::names.pass_name).get());
  buffer.append(", \"action\": ");
  std::string actions;
  const Ref list = Ref::steal(PySequence_Fast(get_attr(source, fx::names.action).get(),
                                              "the actions of from_node are not a sequence"));
  for (Py_ssize_t i = 0; i < PySequence_Fast_GET_SIZE(list.get()); ++i) {
    if (i != 0) actions += '+';
    const Ref name = get_attr(PySequence_Fast_GET_ITEM(list.get(), i), fx::names.name);
    for (const char c : Text(name.get()).view()) {
      actions += static_cast<char>(std::tolower(static_cast<unsigned char>(c)));
    }
  }
  schema::write_json_string(buffer, actions);
  buffer.append(", \"from_node\": ");
  text += buffer.text();
  node_sources(get_attr(source, fx::names.from_node).get(), text);
  text += '}';
}

}  // namespace fxpress::serde
