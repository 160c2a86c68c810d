#include "view/written_graph.h"

#include <array>
#include <string>
#include <utility>

#include "py/text.h"
#include "view/names.h"

namespace fxpress::view {

namespace {

// What objects of Python take: bytes, with the lists and texts that belong to them.
constexpr uint64_t kNodeBytes = 1400;
constexpr uint64_t kEdgeBytes = 300;
constexpr uint64_t kResultBytes = 600;
constexpr uint64_t kItemBytes = 16;

void append(const Ref& list, PyObject* item) {
  check(PyList_Append(list.get(), item));
}

// A new list's item; takes the reference over.
void set_item(const Ref& list, size_t place, Ref item) {
  PyList_SET_ITEM(list.get(), static_cast<Py_ssize_t>(place), item.release());
}

Ref new_list(size_t size) {
  return Ref::steal(PyList_New(static_cast<Py_ssize_t>(size)));
}

}  // namespace

Ref new_dict(std::span<PyObject* const> keys_and_values) {
  Ref made = Ref::steal(PyDict_New());
  for (size_t i = 0; i + 1 < keys_and_values.size(); i += 2) {
    check(PyDict_SetItem(made.get(), keys_and_values[i], keys_and_values[i + 1]));
  }
  return made;
}

PyObject* list_in(PyObject* tuple, Py_ssize_t place) {
  PyObject* const found = PyTuple_Check(tuple) && place < PyTuple_GET_SIZE(tuple)
                              ? PyTuple_GET_ITEM(tuple, place)
                              : nullptr;
  if (found == nullptr || !PyList_Check(found)) {
    raise(PyExc_TypeError, "expected a tuple with a list, not %R", tuple);
  }
  return found;
}

core::StringId WrittenGraph::id_of(std::string_view name) {
  const core::StringId id = names_.intern(name);
  if (id.value() == values_.size()) values_.emplace_back();
  return id;
}

PyObject* WrittenGraph::text_of(core::StringId name) {
  Ref& text = values_[name.value()].text;
  if (!text) text = new_text(names_.text(name));
  return text.get();
}

PyObject* WrittenGraph::number(size_t value) {
  while (numbers_.size() <= value) numbers_.push_back(new_string(std::to_string(numbers_.size())));
  return numbers_[value].get();
}

// Describes an argument that is a value; Model Explorer adds what is known of the value.
PyObject* WrittenGraph::argument(size_t place, core::StringId name) {
  const uint64_t key = static_cast<uint64_t>(place) << 32u | name.value();
  const auto [at, added] = argument_at_.insert(key, static_cast<uint32_t>(arguments_.size()));
  if (added) {
    const Names& n = names();
    const Ref pair = new_dict(std::array{n.key, n.tag, n.value, text_of(name)});
    Ref attributes = new_list(1);
    set_item(attributes, 0, Ref::borrow(pair.get()));
    charge_.add(kResultBytes);
    arguments_.push_back(new_dict(std::array{n.id, number(place), n.attrs, attributes.get()}));
  }
  return arguments_[at].get();
}

Ref WrittenGraph::add(PyObject* id, PyObject* label, PyObject* layer, Ref attributes,
                      std::span<const Given> given) {
  const Names& n = names();
  const auto items = static_cast<uint64_t>(PyList_GET_SIZE(attributes.get()));
  charge_.add(kNodeBytes + kItemBytes * items + kEdgeBytes * given.size());
  Ref edges = new_list(given.size());
  Ref inputs = new_list(given.size());
  for (size_t place = 0; place < given.size(); ++place) {
    const Value& value = values_[given[place].value.value()];
    if (value.node == kNone) {
      raise(PyExc_ValueError, "no value %R was computed before", text_of(given[place].value));
    }
    Node& source = written_[value.node];
    set_item(inputs, place, Ref::borrow(argument(place, given[place].argument)));
    set_item(edges, place,
             new_dict(std::array{n.source, source.id.get(), n.source_output, number(value.output),
                                 n.target_input, number(place)}));
    if (!source.users) source.users = new_list(0);
    const Py_ssize_t users = PyList_GET_SIZE(source.users.get());
    if (users == 0 || PyList_GET_ITEM(source.users.get(), users - 1) != id)
      append(source.users, id);
  }
  Ref outputs = new_list(0);
  Ref node =
      new_dict(std::array{n.id, id, n.label, label, n.layer, layer, n.attrs, attributes.get(),
                          n.edges, edges.get(), n.inputs, inputs.get(), n.outputs, outputs.get()});
  append(nodes_, node.get());
  written_.push_back({Ref::borrow(id), std::move(attributes), std::move(outputs), Ref()});
  return node;
}

void WrittenGraph::add_result(core::StringId value, PyObject* known_of_it) {
  const Names& n = names();
  if (written_.empty()) raise(PyExc_IndexError, "there is no node");
  PyObject* const attributes = list_in(known_of_it, 0);
  const Node& node = written_.back();
  const auto known = static_cast<size_t>(PyList_GET_SIZE(attributes));
  charge_.add(kResultBytes + kItemBytes * known);
  const Ref shown = new_list(1 + known);
  set_item(shown, 0, new_dict(std::array{n.key, n.tag, n.value, text_of(value)}));
  for (size_t i = 0; i < known; ++i) {
    set_item(shown, 1 + i, Ref::borrow(PyList_GET_ITEM(attributes, static_cast<Py_ssize_t>(i))));
  }
  const auto output = static_cast<uint32_t>(PyList_GET_SIZE(node.outputs.get()));
  append(node.outputs, new_dict(std::array{n.id, number(output), n.attrs, shown.get()}).get());
  Value& computed = values_[value.value()];
  computed.node = static_cast<uint32_t>(written_.size() - 1);
  computed.output = output;
  computed.known = Ref::borrow(known_of_it);
}

void WrittenGraph::add_users() {
  const Names& n = names();
  for (const Node& node : written_) {
    if (!node.users) continue;
    const Ref value = new_dict(std::array{n.type, n.node_ids, n.nodes, node.users.get()});
    append(node.attributes, new_dict(std::array{n.key, n.users, n.value, value.get()}).get());
  }
}

}  // namespace fxpress::view
