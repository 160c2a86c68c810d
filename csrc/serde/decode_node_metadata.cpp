#include <algorithm>

#include "fx/symbols.h"
#include "py/calls.h"
#include "py/containers.h"
#include "schema/json_reader.h"
#include "serde/documents.h"
#include "serde/graph_decoder.h"
#include "serde/symbols.h"

namespace fxpress::serde {

namespace {

// The estimated sizes of Python objects, in bytes.
constexpr uint64_t kSourceBytes = 800;  // a NodeSource object
constexpr uint64_t kEntryBytes = 300;   // an entry of a module stack: texts, tuples
constexpr uint64_t kJsonRatio = 24;     // bytes of the parsed objects for each byte of JSON text

constexpr char kBetweenEntries = ';';

template <class Each>
void split(std::string_view text, char at, Each each) {
  for (size_t start = 0;;) {
    const size_t end = std::min(text.find(at, start), text.size());
    each(text.substr(start, end - start));
    if (end == text.size()) return;
    start = end + 1;
  }
}

// Splits an entry of a module stack at the commas outside brackets.
std::vector<std::string_view> split_entry(std::string_view text) {
  std::vector<std::string_view> parts;
  size_t start = 0;
  int depth = 0;
  for (size_t i = 0; i < text.size(); ++i) {
    const char c = text[i];
    if (c == '[' || c == '(') ++depth;
    if (c == ']' || c == ')') --depth;
    if (c == ',' && depth == 0) {
      parts.push_back(text.substr(start, i - start));
      start = i + 1;
    }
  }
  parts.push_back(text.substr(start));
  return parts;
}

}  // namespace

GraphDecoder::Metadata GraphDecoder::read_metadata(const Value& node) {
  Metadata result;
  const auto entries = children_of(node, Field::Node_metadata);
  const auto add = [&](std::string_view key, PyObject* name, auto&& convert) {
    for (size_t i = 0; i < entries.size(); i += 2) {
      if (text_of(entries[i]) != key) continue;
      const std::string_view text = text_of(entries[i + 1]);
      if (!text.empty()) result.emplace_back(name, convert(text));
      return;
    }
  };
  add("stack_trace", fx::names.stack_trace, new_text);
  add("nn_module_stack", fx::names.nn_module_stack,
      [&](std::string_view text) { return module_stack(text); });
  add("source_fn_stack", fx::names.source_fn_stack,
      [&](std::string_view text) { return source_functions(text); });
  add("torch_fn", fx::names.torch_fn, [&](std::string_view text) {
    std::vector<Ref> parts;
    split(text, kBetweenEntries, [&](std::string_view part) {
      charge(kSlotBytes);
      parts.push_back(new_text(part));
    });
    return take_as_tuple(parts);
  });
  add("custom", fx::names.custom, new_text);
  add("from_node", fx::names.from_node, [&](std::string_view text) { return node_sources(text); });
  return result;
}

// Adds `metadata` to `meta`. Copies dicts and lists, because several nodes get this metadata, and a
// pass may change the dicts and lists of one node.
void GraphDecoder::add_metadata(const Metadata& metadata, PyObject* meta) {
  for (const auto& [name, value] : metadata) {
    PyObject* found = value.get();
    Ref copy;
    if (name == fx::names.custom) {  // JSON text, parsed again for each copy
      const std::string_view text = utf8(found);
      charge(text.size(), kJsonRatio);
      if (schema::is_nested_deeper(text, budget_->depth())) {
        throw core::LimitReached("depth", "the custom metadata of a node");
      }
      copy = call(symbols.loads, found);
    } else if (PyDict_CheckExact(found)) {
      charge(kDictBytes + static_cast<uint64_t>(PyDict_GET_SIZE(found)) * kSlotBytes);
      copy = Ref::steal(PyDict_Copy(found));
    } else if (PyList_CheckExact(found)) {
      charge(static_cast<uint64_t>(PyList_GET_SIZE(found)) * kSlotBytes);
      copy = Ref::steal(PyList_GetSlice(found, 0, PyList_GET_SIZE(found)));
    }
    check(PyDict_SetItem(meta, name, copy ? copy.get() : found));
  }
}

Ref GraphDecoder::module_stack(std::string_view text) {
  Ref& known = entry(stacks_, text);
  if (!known) {
    Ref stack = Ref::steal(PyDict_New());
    split(text, kBetweenEntries, [&](std::string_view entry) {
      charge(kEntryBytes);
      const auto& [key, value] = stack_entry(entry);
      check(PyDict_SetItem(stack.get(), key.get(), value.get()));
    });
    known = std::move(stack);
  }
  return Ref::borrow(known.get());
}

const GraphDecoder::StackEntry& GraphDecoder::stack_entry(std::string_view text) {
  StackEntry& known = entry(stack_entries_, text);
  if (!known.key) {
    const auto parts = split_entry(text);
    if (parts.size() != 3) {
      raise(symbols.serialize_error, "an entry of nn_module_stack has %zu parts, not 3: %R",
            parts.size(), new_text(text).get());
    }
    const Ref path = new_text(parts[1]);
    const Ref type = new_text(parts[2]);
    known = {new_text(parts[0]), Ref::steal(PyTuple_Pack(2, path.get(), type.get()))};
  }
  return known;
}

Ref GraphDecoder::source_functions(std::string_view text) {
  Ref& known = entry(functions_, text);
  if (!known) {
    Ref stack = Ref::steal(PyList_New(0));
    split(text, kBetweenEntries, [&](std::string_view entry) {
      charge(kEntryBytes);
      const size_t comma = entry.find(',');
      if (comma == std::string_view::npos || comma != entry.rfind(',')) {
        raise(symbols.serialize_error, "an entry of source_fn_stack is not a pair: %R",
              new_text(entry).get());
      }
      const Ref name = new_text(entry.substr(0, comma));
      const Ref function = call(symbols.source_function, new_text(entry.substr(comma + 1)));
      const Ref pair = Ref::steal(PyTuple_Pack(2, name.get(), function.get()));
      check(PyList_Append(stack.get(), pair.get()));
    });
    known = std::move(stack);
  }
  return Ref::borrow(known.get());
}

// Parses the JSON text of from_node, which is null or a list of NodeSource. The schema has no type
// for this list, so the text is parsed as the only field of a NodeSource, `from_node`.
Ref GraphDecoder::node_sources(std::string_view text) {
  constexpr std::string_view kBefore = "{\"from_node\": ";
  std::string whole;
  whole.reserve(kBefore.size() + text.size() + 1);
  whole += kBefore;
  whole += text;
  whole += '}';
  try {
    Document document = schema::read_json(whole, document_->schema(),
                                          static_cast<uint16_t>(Type::NodeSource), budget_);
    pass_gate(document);
    const core::ScopedValue<const Document*> current(document_, &document);
    const Value& list = field(document.root(), Field::NodeSource_from_node);
    if (list.kind == ValueKind::kNull) return Ref::borrow(Py_None);
    return node_sources(list);
  } catch (const schema::JsonError& error) {
    raise(symbols.serialize_error, "the metadata from_node of a node: %s", error.what());
  }
}

Ref GraphDecoder::node_sources(const Value& list) {
  const auto items = children_of(list);
  return make_list(items.size(), [&](size_t i) { return node_source(items[i]); });
}

Ref GraphDecoder::node_source(const Value& value) {
  const core::Budget::Level level(*budget_, "the from_node of a node");
  charge(kSourceBytes);
  const auto part = [&](Field name) { return scalar_of(field(value, name)); };
  Ref actions = Ref::steal(PyList_New(0));
  split(text_of(value, Field::NodeSource_action), '+', [&](std::string_view action) {
    charge(kSlotBytes);
    PyObject* known = dict_get(symbols.node_source_actions, new_text(action).get());
    if (known != nullptr) check(PyList_Append(actions.get(), known));
  });
  const Value& before = field(value, Field::NodeSource_from_node);
  const Ref sources =
      before.kind == ValueKind::kNull ? Ref::steal(PyList_New(0)) : node_sources(before);
  const Ref fields[] = {part(Field::NodeSource_name), part(Field::NodeSource_target),
                        part(Field::NodeSource_graph_id)};
  Ref info = Ref::borrow(Py_None);
  if (fields[0].get() != Py_None && fields[1].get() != Py_None && fields[2].get() != Py_None) {
    info = new_instance(symbols.node_info_type, {{fx::names.name, fields[0].get()},
                                                 {fx::names.target, fields[1].get()},
                                                 {fx::names.graph_id, fields[2].get()}});
  }
  return new_instance(symbols.node_source_type,
                      {{fx::names.action_string, Py_None},
                       {fx::names.cached_dict, Py_None},
                       {fx::names.pass_name, part(Field::NodeSource_pass_name).get()},
                       {fx::names.action, actions.get()},
                       {fx::names.node_info, info.get()},
                       {fx::names.from_node, sources.get()}});
}

}  // namespace fxpress::serde
