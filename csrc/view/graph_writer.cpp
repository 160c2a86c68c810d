#include "view/graph_writer.h"

#include <algorithm>

#include "py/text.h"
#include "view/names.h"

namespace fxpress::view {

namespace py = pybind11;
using schema::JsonIndex;

namespace {

// What objects of Python take, in bytes, with what they are found by.
constexpr uint64_t kBytesLoaded = 100;  // of each byte of JSON: most values have several
constexpr uint64_t kDescriptionBytes = 600;
constexpr uint64_t kNameBytes = 150;
constexpr uint64_t kLayerBytes = 2000;  // with what is shown of it
constexpr uint32_t kNone = JsonIndex::kNone;

PyObject* role(const py::dict& functions, const char* name) {
  PyObject* found = PyDict_GetItemString(functions.ptr(), name);
  if (found == nullptr) raise(PyExc_KeyError, "%s", name);
  return found;
}

// The one kind of a union that is set: writers that name all kinds set the others to null.
uint32_t one_of(const JsonIndex& index, uint32_t value) {
  expect_object(index, value);
  const uint32_t only = index.only_one(value);
  if (only != kNone) return only;
  uint32_t found = kNone;
  size_t count = 0;
  for (uint32_t at = index.first_in(value); at != index.end_of(value); at = index.next(at)) {
    if (index.raw(at) == "null") continue;
    found = at;
    ++count;
  }
  if (count != 1) raise(PyExc_TypeError, "expected one value of some kind, got %zu", count);
  return found;
}

core::StringId id_of(WrittenGraph& graph, PyObject* name) {
  return graph.id_of(Text(name).view());
}

}  // namespace

GraphWriter::GraphWriter(JsonValue graph, const py::dict& functions, const py::dict& metadata,
                         const py::object& charge)
    : graph_(std::move(graph)),
      charge_(charge.ptr()),
      written_(charge_),
      persistent_(role(functions, "persistent")),
      targets_(role(functions, "target")),
      tensors_(role(functions, "tensor")),
      kind_(Ref::borrow(role(functions, "kind"))),
      argument_(Ref::borrow(role(functions, "argument"))),
      results_(Ref::borrow(role(functions, "results"))),
      no_tensor_(Ref::borrow(role(functions, "no_tensor"))) {
  for (const auto& [name, make] : metadata) {
    metadata_.emplace_back(name.cast<std::string>(), Once(make.ptr()));
  }
  const uint32_t tensors = field(graph_.number(), "tensor_values");
  expect_object(index(), tensors);
  for (uint32_t at = index().first_in(tensors); at != index().end_of(tensors);
       at = index().next(at)) {
    const core::StringId name = written_.id_of(index().key(at, unescaped_));
    if (name.value() == metas_.size()) {
      charge_.add(kNameBytes);
      metas_.push_back(kNone);
    }
    metas_[name.value()] = at;
  }
  find_stacks();
}

std::string_view GraphWriter::text(uint32_t value) {
  expect_text(index(), value);
  return index().text(value, unescaped_);
}

Ref GraphWriter::load(uint32_t value) {
  charge_.add(kDescriptionBytes + cost_of(index(), value));
  return index().is_text(value) ? new_text(text(value)) : load_json(index().raw(value));
}

// Loads an argument with null in place of the graphs in it.
Ref GraphWriter::load_without(uint32_t value, const std::vector<uint32_t>& graphs) {
  if (graphs.empty()) return load(value);
  std::vector<uint32_t> in_order = graphs;
  std::sort(in_order.begin(), in_order.end());
  const std::string_view whole = index().raw(value);
  std::string made;
  size_t from = 0;
  for (const uint32_t graph : in_order) {
    const std::string_view left_out = index().raw(graph);
    const auto place = static_cast<size_t>(left_out.begin() - whole.begin());
    made.append(whole.substr(from, place - from)).append("null");
    from = place + left_out.size();
  }
  made.append(whole.substr(from));
  charge_.add(kDescriptionBytes + kBytesLoaded * made.size());
  return load_json(made);
}

// A node whose stack is damaged is told of when it is written.
void GraphWriter::find_stacks() {
  const uint32_t nodes = field(graph_.number(), "nodes");
  expect_list(index(), nodes);
  std::unordered_map<std::string_view, uint32_t> known;
  for (uint32_t at = index().first_in(nodes); at != index().end_of(nodes); at = index().next(at)) {
    const uint32_t metadata = index().is_object(at) ? index().find(at, "metadata") : kNone;
    const bool has_fields = metadata != kNone && index().is_object(metadata);
    const uint32_t stack = has_fields ? index().find(metadata, "nn_module_stack") : kNone;
    const bool is_text = stack != kNone && index().is_text(stack);
    const auto [found, added] = known.try_emplace(is_text ? index().raw(stack) : "\"\"",
                                                  static_cast<uint32_t>(stacks_.size()));
    if (added) {
      charge_.add(kLayerBytes + 4 * found->first.size());
      stacks_.push_back({is_text ? new_text(text(stack)) : new_string(""), Ref()});
    }
    stack_of_.push_back(found->second);
  }
}

Ref GraphWriter::stacks() {
  std::vector<size_t> counts(stacks_.size());
  for (const uint32_t stack : stack_of_) ++counts[stack];
  Ref made = Ref::steal(PyDict_New());
  for (size_t i = 0; i < stacks_.size(); ++i) {
    PyObject* const text = stacks_[i].text.get();
    PyObject* const before = dict_get(made.get(), text);  // of one with other escapes
    const size_t number = counts[i] + (before == nullptr ? 0 : PyLong_AsSize_t(before));
    check(PyDict_SetItem(made.get(), text, Ref::steal(PyLong_FromSize_t(number)).get()));
  }
  return made;
}

PyObject* GraphWriter::layer_of(uint32_t metadata, PyObject* ask) {
  const uint32_t stack = index().find(metadata, "nn_module_stack");
  if (stack != kNone) expect_text(index(), stack);
  Stack& known = stacks_[stack_of_[number_]];
  if (!known.layer) known.layer = Ref::steal(PyObject_CallOneArg(ask, known.text.get()));
  return known.layer.get();
}

PyObject* GraphWriter::known_of(core::StringId value) {
  const uint32_t meta =
      value.value() < metas_.size() ? std::exchange(metas_[value.value()], kNone) : kNone;
  if (meta != kNone && index().raw(meta) != "null") {
    return tensors_.of(index().raw(meta), [&] { return load(meta); });
  }
  PyObject* const before = written_.known_of(value);
  return before != nullptr ? before : no_tensor_.get();
}

Ref GraphWriter::add(const py::str& id, const py::str& label, const py::str& layer,
                     const py::list& attributes, const py::list& given) {
  std::vector<Given> values;
  for (const py::handle each : given) {
    const auto pair = each.cast<py::tuple>();
    if (pair.size() != 2) raise(PyExc_TypeError, "expected a pair, not %R", pair.ptr());
    values.push_back({id_of(written_, pair[0].ptr()), id_of(written_, pair[1].ptr())});
  }
  return written_.add(id.ptr(), label.ptr(), layer.ptr(), Ref::borrow(attributes.ptr()), values);
}

void GraphWriter::write_inputs(const std::optional<JsonValue>& specs, const py::dict& state,
                               const py::object& layer) {
  if (specs) expect_list(index(), specs->number());
  const uint32_t inputs = field(graph_.number(), "inputs");
  expect_list(index(), inputs);
  uint32_t spec = specs ? index().first_in(specs->number()) : kNone;
  number_ = 0;
  for (uint32_t at = index().first_in(inputs); at != index().end_of(inputs);
       at = index().next(at)) {
    poll_signals(number_);
    if (specs && spec == index().end_of(specs->number())) spec = kNone;
    write_input(at, spec, state, layer.ptr());
    if (spec != kNone) spec = index().next(spec);
    ++number_;
  }
}

void GraphWriter::write_input(uint32_t given, uint32_t spec, const py::dict& state,
                              PyObject* layer) {
  const core::StringId name = first_value(given);
  if (!name.valid()) return;  // a constant
  attributes_.clear();
  PyObject* const own_name = written_.text_of(name);
  if (PyUnicode_GET_LENGTH(own_name) > 0) take_own_name(name);
  Ref target;
  if (spec != kNone) {
    target = name_in_state(spec, state);
  } else {
    take_kind("input");
  }
  PyObject* const known = known_of(name);
  take_attributes(list_in(known, 0));
  PyObject* where = names().inputs_layer;
  Ref found;
  Ref label = Ref::borrow(own_name);
  if (target) {
    const Py_ssize_t size = PyUnicode_GET_LENGTH(target.get());
    const Py_ssize_t dot = PyUnicode_FindChar(target.get(), '.', 0, size, -1);
    const Ref path = Ref::steal(PyUnicode_Substring(target.get(), 0, dot < 0 ? 0 : dot));
    charge_.add(kLayerBytes);
    PyObject* const items[] = {path.get(), check(PyTuple_GetItem(known, 1))};
    found = Ref::steal(PyObject_Vectorcall(layer, items, 2, nullptr));
    where = found.get();
    if (dot + 1 < size) label = Ref::steal(PyUnicode_Substring(target.get(), dot + 1, size));
  }
  const Ref id = new_string("input " + std::to_string(number_));
  written_.add(id.get(), label.get(), where, taken_attributes(), {});
  written_.add_result(name, known);
}

// The first value that an input names; not valid where there is none.
core::StringId GraphWriter::first_value(uint32_t given) {
  const core::StringId tensor = tensor_in(given);
  if (tensor.valid()) return tensor;
  const Ref values = Ref::steal(PyObject_CallOneArg(results_.get(), load(given).get()));
  if (!PyList_Check(values.get()) || PyList_GET_SIZE(values.get()) == 0) return {};
  return id_of(written_, PyList_GET_ITEM(values.get(), 0));
}

void GraphWriter::take_kind(const std::string& kind) {
  Ref& shown = kinds_[kind];
  if (!shown) shown = Ref::steal(PyObject_CallOneArg(kind_.get(), new_text(kind).get()));
  take_attributes(shown.get());
}

// Takes the attributes that tell the kind of an input, and returns its name in the state, or null.
Ref GraphWriter::name_in_state(uint32_t spec, const py::dict& state) {
  const uint32_t held = one_of(index(), spec);
  const std::string kind(index().key(held, unescaped_));
  take_kind(kind);
  Ref name;
  const uint32_t fields = is_false(held) ? kNone : held;
  if (fields != kNone) expect_object(index(), fields);
  PyObject* const field_name = dict_get(state.ptr(), new_text(kind).get());
  const uint32_t found =
      fields == kNone || field_name == nullptr ? kNone : index().find(fields, utf8(field_name));
  if (found != kNone) {
    name = new_text(text(found));
    if (PyUnicode_GET_LENGTH(name.get()) == 0) name = Ref();
  }
  if (name) {
    PyObject* const items[] = {names().key, names().state, names().value, name.get()};
    attributes_.push_back(new_dict(items));
  }
  if (kind == "buffer") {
    const uint32_t persistent = field(held, "persistent");
    take_attributes(persistent_.of(index().raw(persistent), [&] { return load(persistent); }));
  }
  return name;
}

void GraphWriter::write(const py::object& layer, const py::object& bodies) {
  const uint32_t nodes = field(graph_.number(), "nodes");
  number_ = 0;
  for (uint32_t at = index().first_in(nodes); at != index().end_of(nodes); at = index().next(at)) {
    poll_signals(number_);
    write_node(at, layer.ptr(), bodies.ptr());
    ++number_;
  }
}

void GraphWriter::write_node(uint32_t node, PyObject* layer, PyObject* bodies) {
  attributes_.clear();
  given_.clear();
  bodies_.clear();
  const uint32_t metadata = field(node, "metadata");
  expect_object(index(), metadata);
  const uint32_t called = field(node, "target");
  PyObject* const target = targets_.of(index().raw(called), [&] { return load(called); });
  if (!PyTuple_Check(target) || PyTuple_GET_SIZE(target) != 2) {
    raise(PyExc_TypeError, "expected label and attribute, not %R", target);
  }
  attributes_.push_back(Ref::borrow(PyTuple_GET_ITEM(target, 1)));
  const core::StringId name = name_of(node);
  if (name.valid()) take_own_name(name);
  PyObject* const where = layer_of(metadata, layer);
  const uint32_t inputs = field(node, "inputs");
  expect_list(index(), inputs);
  size_t position = 0;
  for (uint32_t at = index().first_in(inputs); at != index().end_of(inputs);
       at = index().next(at)) {
    read_argument(at, position++);
  }
  for (auto& [key, make] : metadata_) {
    const uint32_t told = index().find(metadata, key);
    if (told == kNone) continue;
    take_attributes(make.of(index().raw(told), [&] { return load(told); }));
  }
  const Ref id = new_string("node " + std::to_string(number_));
  const Ref made =
      written_.add(id.get(), PyTuple_GET_ITEM(target, 0), where, taken_attributes(), given_);
  if (!bodies_.empty()) {
    write_bodies(made.get(), name.valid() ? written_.text_of(name) : id.get(), bodies);
  }
  write_results(field(node, "outputs"));
}

// The name of a node; not valid where there is none.
core::StringId GraphWriter::name_of(uint32_t node) {
  const uint32_t name = index().find(node, "name");
  return name == kNone || is_false(name) ? core::StringId() : written_.id_of(text(name));
}

// Whether a value is false for Python: null, a zero, or empty.
bool GraphWriter::is_false(uint32_t value) {
  if (index().is_text(value)) return index().raw(value).size() == 2;
  const int is_true = PyObject_IsTrue(load(value).get());
  check(is_true);
  return is_true == 0;
}

void GraphWriter::read_argument(uint32_t argument, size_t position) {
  const std::string_view given = text(field(argument, "name"));
  const core::StringId name =
      given.empty() ? written_.id_of(std::to_string(position)) : written_.id_of(given);
  const uint32_t held = field(argument, "arg");
  const core::StringId tensor = tensor_in(held);
  if (tensor.valid()) return given_.push_back({tensor, name});
  describe_argument(argument, name, held);
}

// The name of the tensor that an argument is; not valid where it is something else.
core::StringId GraphWriter::tensor_in(uint32_t held) {
  if (!index().is_object(held)) return {};
  const uint32_t tensor = index().only_one(held);
  if (tensor == kNone || !index().has_key(tensor, "as_tensor")) return {};
  const uint32_t name = index().is_object(tensor) ? index().find(tensor, "name") : kNone;
  return name != kNone && index().is_text(name) ? written_.id_of(text(name)) : core::StringId();
}

// The graphs in an argument, in the order of `bodies_in` of Python.
std::vector<uint32_t> GraphWriter::bodies_in(uint32_t held) const {
  std::vector<uint32_t> found;
  std::vector<uint32_t> waiting = {held};
  while (!waiting.empty()) {
    const uint32_t value = waiting.back();
    waiting.pop_back();
    const bool is_object = index().is_object(value);
    const uint32_t graph = is_object ? index().find(value, "as_graph") : kNone;
    if (graph != kNone && index().raw(graph) != "null") found.push_back(field(graph, "graph"));
    const size_t before = waiting.size();
    for (uint32_t at = index().first_in(value); at != index().end_of(value);
         at = index().next(at)) {
      if (!is_object || !index().has_key(at, "as_graph")) waiting.push_back(at);
    }
    if (!is_object) {
      std::reverse(waiting.begin() + static_cast<std::ptrdiff_t>(before), waiting.end());
    }
  }
  return found;
}

void GraphWriter::describe_argument(uint32_t argument, core::StringId name, uint32_t held) {
  auto known = arguments_.find(index().raw(argument));
  if (known == arguments_.end()) {
    const std::vector<uint32_t> graphs = bodies_in(held);
    for (size_t i = 0; i < graphs.size(); ++i) bodies_.push_back({name, i, graphs[i]});
    const Ref value = load_without(held, graphs);
    PyObject* const items[] = {written_.text_of(name), value.get()};
    Ref told = Ref::steal(PyObject_Vectorcall(argument_.get(), items, 2, nullptr));
    const bool has_name = index().raw(field(argument, "name")).size() > 2;
    if (!has_name || !graphs.empty()) {
      take_attributes(list_in(told.get(), 0));
      return take_values(list_in(told.get(), 1), name);
    }
    known = arguments_.emplace(index().raw(argument), std::move(told)).first;
  }
  take_attributes(list_in(known->second.get(), 0));
  take_values(list_in(known->second.get(), 1), name);
}

void GraphWriter::take_attributes(PyObject* list) {
  if (!PyList_Check(list)) raise(PyExc_TypeError, "expected a list, not %R", list);
  for (Py_ssize_t i = 0; i < PyList_GET_SIZE(list); ++i) {
    attributes_.push_back(Ref::borrow(PyList_GET_ITEM(list, i)));
  }
}

void GraphWriter::take_own_name(core::StringId name) {
  PyObject* const items[] = {names().key, names().name, names().value, written_.text_of(name)};
  attributes_.push_back(new_dict(items));
}

// A new list of the attributes that were taken.
Ref GraphWriter::taken_attributes() const {
  Ref list = Ref::steal(PyList_New(static_cast<Py_ssize_t>(attributes_.size())));
  for (size_t i = 0; i < attributes_.size(); ++i) {
    Ref item = Ref::borrow(attributes_[i].get());
    PyList_SET_ITEM(list.get(), static_cast<Py_ssize_t>(i), item.release());
  }
  return list;
}

void GraphWriter::take_values(PyObject* list, core::StringId argument) {
  for (Py_ssize_t i = 0; i < PyList_GET_SIZE(list); ++i) {
    given_.push_back({id_of(written_, PyList_GET_ITEM(list, i)), argument});
  }
}

void GraphWriter::write_bodies(PyObject* node, PyObject* name, PyObject* write) {
  py::list bodies;
  for (const Body& body : bodies_) {
    bodies.append(py::make_tuple(py::handle(written_.text_of(body.argument)), body.number,
                                 JsonValue(graph_.text(), body.graph)));
  }
  const Ref number = Ref::steal(PyLong_FromSize_t(number_));
  PyObject* const items[] = {number.get(), name, bodies.ptr()};
  const Ref ids = Ref::steal(PyObject_Vectorcall(write, items, 3, nullptr));
  check(PyDict_SetItem(node, names().subgraphs, ids.get()));
}

void GraphWriter::write_results(uint32_t outputs) {
  const auto add = [&](core::StringId value) { written_.add_result(value, known_of(value)); };
  const uint32_t single = index().is_list(outputs) ? index().only_one(outputs) : kNone;
  const bool is_object = single != kNone && index().is_object(single);
  const uint32_t tensor = is_object ? index().find(single, "as_tensor") : kNone;
  if (!index().is_text(outputs) && !index().is_object(outputs)) expect_list(index(), outputs);
  if (tensor != kNone) return add(written_.id_of(text(field(tensor, "name"))));
  const Ref values = Ref::steal(PyObject_CallOneArg(results_.get(), load(outputs).get()));
  if (!PyList_Check(values.get())) {
    raise(PyExc_TypeError, "expected a list, not %R", values.get());
  }
  for (Py_ssize_t i = 0; i < PyList_GET_SIZE(values.get()); ++i) {
    add(id_of(written_, PyList_GET_ITEM(values.get(), i)));
  }
}

}  // namespace fxpress::view
