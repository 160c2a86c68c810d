#include "decompose/instantiate.h"

#include <algorithm>
#include <cstdlib>
#include <deque>
#include <memory>
#include <string>
#include <unordered_map>
#include <utility>
#include <vector>

#include "core/characters.h"
#include "core/check.h"
#include "core/flat_map.h"
#include "decompose/recipe.h"
#include "fx/fakes.h"
#include "fx/symbols.h"
#include "fx/writer.h"
#include "py/calls.h"
#include "py/containers.h"

namespace fxpress::decompose {

using core::Op;
using core::StringId;

namespace {

// The last underscore in a name that is followed by a digit, and the number after this underscore.
// As in torch's naming of placeholders, other characters may follow the number.
struct Suffix {
  size_t at = std::string_view::npos;  // position of the underscore; npos without suffix
  unsigned long number = 0;
};

Suffix suffix_of(std::string_view name) {
  for (size_t at = name.size(); at-- > 0;) {
    if (name[at] != '_' || at + 1 == name.size() || !core::is_digit(name[at + 1])) continue;
    size_t end = at + 1;
    while (end < name.size() && core::is_digit(name[end])) ++end;
    return {at, std::strtoul(std::string(name.substr(at + 1, end - at - 1)).c_str(), nullptr, 10)};
  }
  return {};
}

}  // namespace

std::string_view Renamer::take(std::string_view name) {
  const Suffix suffix = suffix_of(name);
  if (suffix.at != std::string_view::npos) {
    unsigned long& highest = highest_[std::string(name.substr(0, suffix.at))];
    highest = std::max(highest, suffix.number);
  }
  return *used_.emplace(name).first;
}

std::string_view Renamer::take_next(std::string_view base) {
  const std::string prefix(base);
  return take(prefix + "_" + std::to_string(highest_[prefix] + 1));
}

std::string_view Renamer::placeholder(std::string_view name) {
  return is_free(name) ? take(name) : take_next(name);
}

std::string_view Renamer::node(std::string_view name) {
  return is_free(name) ? take(name) : take_next(name.substr(0, suffix_of(name).at));
}

namespace {

uint32_t number(PyObject* value) {
  return static_cast<uint32_t>(to_long(value));
}

std::vector<uint32_t> numbers(PyObject* list) {
  FXPRESS_CHECK(PyList_Check(list), "expected a list of numbers");
  std::vector<uint32_t> result;
  result.reserve(items_of(list).size());
  for (PyObject* item : items_of(list)) result.push_back(number(item));
  return result;
}

Ref word(const char* text) {
  return Ref::steal(PyUnicode_InternFromString(text));
}

// Creates the values of instantiated nodes: fake tensors, which may share storages, and lists and
// tuples of values.
class Values {
 public:
  // helper: a fxpress._graphs.decompose.write.Writer. Its dict `tools` contains functions of torch.
  explicit Values(PyObject* helper) : helper_(helper) {
    const Ref tools = Ref::steal(PyObject_GetAttrString(helper, "tools"));
    empty_ = tool(tools.get(), "empty");
    empty_strided_ = tool(tools.get(), "empty_strided");
    like_pattern_ = tool(tools.get(), "like_pattern");
    meta_ = tool(tools.get(), "meta");
  }

  // Creates a value. storages: a list of fxpress._graphs.decompose.values.Storage.
  Ref make(const ValueSpec& spec, PyObject* storages) {
    if (spec.type == ValueType::kConstant) return Ref::borrow(spec.constant.get());
    if (spec.type == ValueType::kTensor) return tensor(spec, storages);
    Ref list =
        make_list(spec.parts.size(), [&](size_t i) { return make(spec.parts[i], storages); });
    return spec.type == ValueType::kList ? std::move(list) : Ref::steal(PyList_AsTuple(list.get()));
  }

 private:
  // The first tensor that was created for a spec. Later tensors are copies of it.
  struct First {
    Ref fake;
    bool fills_storage;  // whether its storage was created with the tensor
  };

  static Ref tool(PyObject* tools, const char* role) {
    return Ref::steal(PyMapping_GetItemString(tools, role));
  }

  Ref tensor(const ValueSpec& spec, PyObject* storages) {
    PyObject* storage = PyList_GetItem(storages, spec.storage);
    check(storage);
    const fx::FakeMaker& fakes = fakes_on(spec.device.get());
    const bool fills_storage = spec.is_whole && get_attr(storage, made_.get()).get() == Py_None;
    if (Ref made = like_first(spec, storage, fills_storage, fakes)) return made;
    const Ref real = real_tensor(spec, storage, fills_storage);
    Ref fake = fakes.make(real.get(), /*requires_grad=*/false);
    first_.insert_or_assign(&spec, First{Ref::borrow(fake.get()), fills_storage});
    return fake;
  }

  // Returns a copy of the first tensor of `spec`. fills_storage: whether the new tensor creates its
  // storage. Returns an empty Ref if no tensor of `spec` exists, or if the new tensor creates its
  // storage but the first tensor did not.
  Ref like_first(const ValueSpec& spec, PyObject* storage, bool fills_storage,
                 const fx::FakeMaker& fakes) {
    const auto known = first_.find(&spec);
    if (known == first_.end()) return {};
    PyObject* first = known->second.fake.get();
    if (!fills_storage) {
      return fakes.like(first, storage_of(storage).get());
    }
    if (!known->second.fills_storage) return {};
    Ref fake = fakes.like(first, nullptr);
    if (fake) keep_storage(storage, fake.get());
    return fake;
  }

  Ref real_tensor(const ValueSpec& spec, PyObject* storage, bool fills_storage) {
    Ref real;
    if (spec.pattern.get() != Py_None) {
      const Ref place = fills_storage ? Ref::borrow(Py_None) : storage_of(storage);
      real = call(like_pattern_.get(), spec.pattern, place);
    } else if (fills_storage) {
      PyObject* sizes[] = {spec.shape.get(), spec.strides.get(), spec.dtype.get(), meta_.get()};
      real = Ref::steal(PyObject_Vectorcall(empty_strided_.get(), sizes, 2, dtype_device_.get()));
    } else {
      const Ref place = storage_of(storage);
      PyObject* none[] = {no_data_.get(), spec.dtype.get(), meta_.get()};
      real = Ref::steal(PyObject_Vectorcall(empty_.get(), none, 1, dtype_device_.get()));
      call_method(real.get(), set_.get(), place, spec.offset, spec.shape, spec.strides);
    }
    if (fills_storage) keep_storage(storage, real.get());
    return real;
  }

  void keep_storage(PyObject* storage, PyObject* tensor) {
    const Ref made = call_method(tensor, untyped_storage_.get());
    check(PyObject_SetAttr(storage, made_.get(), made.get()));
  }

  Ref storage_of(PyObject* storage) {
    Ref made = get_attr(storage, made_.get());
    if (made.get() != Py_None) return made;
    return call_method(helper_, storage_.get(), storage);
  }

  const fx::FakeMaker& fakes_on(PyObject* device) {
    for (const auto& [known, fakes] : of_devices_) {
      if (is_equal(known.get(), device)) return fakes;
    }
    Ref attributes = call_method(helper_, attributes_.get(), device);
    return of_devices_
        .emplace_back(Ref::borrow(device), fx::FakeMaker(device, std::move(attributes)))
        .second;
  }

  PyObject* helper_;  // borrowed
  Ref made_ = word("made"), storage_ = word("storage"), attributes_ = word("attributes");
  Ref set_ = word("set_"), untyped_storage_ = word("untyped_storage");
  Ref empty_, empty_strided_, like_pattern_, meta_;
  Ref no_data_ = Ref::steal(PyLong_FromLong(0));
  Ref dtype_device_ = Ref::steal(Py_BuildValue("(ss)", "dtype", "device"));
  std::deque<std::pair<Ref, fx::FakeMaker>> of_devices_;  // device -> maker of fake tensors
  std::unordered_map<const ValueSpec*, First> first_;
};

// Names of methods of InstantiationRequest::helper, and of fields of the Python class Instance.
struct Words {
  Ref call = word("node"), made_of = word("template"), inputs = word("inputs");
  Ref storages = word("storages"), first = word("first");
  Ref source = word("source"), copied = word("copied");
  Ref counted = word("counted"), count = word("count"), missing = word("missing");
};

constexpr uint32_t kNoNode = UINT32_MAX;

struct Instance {
  Ref call;                      // the call's node in the old graph
  Ref made_of;                   // the Python Template
  const Recipe* recipe;          // the fields of made_of
  std::vector<uint32_t> inputs;  // numbers of the call's input nodes; kNoNode: no such node
  Ref storages;                  // list: storages of the inputs, then of new tensors
  uint32_t first;                // number of the instance's first node

  uint32_t number_of(int32_t value) const {
    return value < 0 ? inputs[static_cast<size_t>(-1 - value)]
                     : first + static_cast<uint32_t>(value);
  }
};

class Instantiator {
 public:
  explicit Instantiator(const InstantiationRequest& request)
      : request_(request),
        names_(fx::NameWriter::Forbidden::kForNodes),
        writer_(names_, Ref::borrow(request.graph)),
        values_(request.helper),
        nodes_(number(request.size)) {
    for (Py_ssize_t i = 0; i < PyList_Size(request.instances); ++i) {
      read_instance(PyList_GET_ITEM(request.instances, i));
    }
  }

  Ref run() {
    mark_live();
    share_numbers();
    name_all();
    write_placeholders();
    for (const Instance& instance : instances_) write(instance);
    const std::string_view output = renamer_.node(names_.text(raw_.back()));
    const Ref name = new_string(output);
    writer_.finish();
    restore_names();
    return Ref::steal(PyTuple_Pack(2, all_nodes().get(), name.get()));
  }

 private:
  void read_instance(PyObject* source) {
    Ref made_of = get_attr(source, words_.made_of.get());
    const auto key = reinterpret_cast<uintptr_t>(made_of.get());
    const auto [index, added] = known_.insert(key, static_cast<uint32_t>(recipes_.size()));
    if (added) recipes_.push_back(std::make_unique<Recipe>(made_of.get(), names_));
    const Recipe* recipe = recipes_[index].get();
    counts_ |= recipe->counts();
    instances_.push_back({get_attr(source, words_.call.get()), std::move(made_of), recipe,
                          numbers(get_attr(source, words_.inputs.get()).get()),
                          get_attr(source, words_.storages.get()),
                          number(get_attr(source, words_.first.get()).get())});
  }

  void mark_live() {
    live_.assign(nodes_.size(), 0);
    for (const uint32_t root : numbers(request_.roots)) live_.at(root) = 1;
    for (auto instance = instances_.rbegin(); instance != instances_.rend(); ++instance) {
      const std::vector<RecipeNode>& nodes = instance->recipe->nodes();
      for (size_t i = nodes.size(); i-- > 0;) {
        char& live = live_.at(instance->first + i);
        if (nodes[i].is_impure) live = 1;
        if (live == 0) continue;
        for (const int32_t used : nodes[i].uses) {
          const uint32_t id = instance->number_of(used);
          if (id != kNoNode) live_.at(id) = 1;
        }
      }
    }
  }

  // Replaces nodes that compute the same number (a size) by the first such node.
  void share_numbers() {
    same_as_.resize(nodes_.size());
    for (uint32_t i = 0; i < same_as_.size(); ++i) same_as_[i] = i;
    const std::vector<uint32_t> sizes = numbers(request_.sizes);
    for (uint32_t i = 0; i < sizes.size(); ++i) {
      if (static_cast<int32_t>(sizes[i]) != kNoNumber) computed_.emplace(sizes[i], i);
    }
    readers_end_ = static_cast<uint32_t>(sizes.size()) + number(request_.readers);
    for (const Instance& instance : instances_) {
      const std::vector<RecipeNode>& nodes = instance.recipe->nodes();
      for (uint32_t i = 0; i < nodes.size(); ++i) {
        if (nodes[i].number != kNoNumber) share_number(instance, nodes[i], instance.first + i);
      }
    }
  }

  void share_number(const Instance& instance, const RecipeNode& node, uint32_t id) {
    const auto expression = static_cast<uint32_t>(node.number);
    if (id < readers_end_) {
      computed_.emplace(expression, id);
      return;
    }
    if (live_[id] == 0) return;
    if (node.is_needed && !node.uses.empty() &&
        instance.number_of(node.uses[0]) < first_computed()) {
      same_as_[id] = instance.number_of(node.uses[0]);  // replaced by its input
      live_[id] = 0;
      return;
    }
    auto known = computed_.find(expression);
    if (known == computed_.end() && node.parts > 0) {
      compute_parts(instance, node, id);
      known = computed_.find(expression);
    }
    const bool read_from_dead = node.read != kNothing &&
                                live_[instance.number_of(node.read)] == 0 &&
                                instance.number_of(node.read) >= first_computed();
    if (read_from_dead || (known == computed_.end() && node.is_needed)) {
      call_helper(words_.missing, instance.call.get());
    }
    if (known == computed_.end()) {
      computed_.emplace(expression, id);
      return;
    }
    same_as_[id] = known->second;
    live_[id] = 0;
    live_[known->second] = 1;
  }

  // Marks nodes before `node` as live: those from which torch computes the number of `node`.
  void compute_parts(const Instance& instance, const RecipeNode& node, uint32_t id) {
    const std::vector<RecipeNode>& nodes = instance.recipe->nodes();
    const uint32_t first = id - static_cast<uint32_t>(node.parts);
    live_[id - 1] = 1;
    for (uint32_t i = id; i-- > first;) {
      const RecipeNode& part = nodes[i - instance.first];
      if (live_[i] == 0 || computed_.contains(static_cast<uint32_t>(part.number))) continue;
      for (const int32_t used : part.uses) live_[instance.number_of(used)] = 1;
    }
    for (uint32_t i = first; i < id; ++i) share_number(instance, nodes[i - instance.first], i);
  }

  uint32_t first_computed() const { return static_cast<uint32_t>(PyList_GET_SIZE(request_.names)); }

  // Creates the names that nodes have before renaming. Dead nodes get names too, because names of
  // later nodes depend on them. Dead nodes that compute sizes do not, because
  // `_graphs/decompose/names.py` renames the nodes of programs with symbolic sizes.
  void name_all() {
    for (Py_ssize_t i = 0; i < PyList_Size(request_.names); ++i) {
      raw_.push_back(names_.table().create(names_.intern("arg" + std::to_string(i) + "_1")));
    }
    for (Py_ssize_t i = 0; i < PyList_Size(request_.taken); ++i) {
      taken_.push_back(names_.table().create(names_.candidate(PyList_GET_ITEM(request_.taken, i))));
    }
    for (const Instance& instance : instances_) {
      for (const RecipeNode& node : instance.recipe->nodes()) {
        const bool is_named = node.number == kNoNumber || live_[raw_.size()] != 0;
        raw_.push_back(is_named ? names_.table().create(node.candidate) : StringId{});
      }
    }
    raw_.push_back(names_.table().create(names_.intern("output")));
  }

  void write_placeholders() {
    for (Py_ssize_t i = 0; i < PyList_GET_SIZE(request_.names); ++i) {
      PyObject* name = PyList_GET_ITEM(request_.names, i);
      renamer_.placeholder(utf8(name));
      const StringId id = names_.candidate(name);
      const fx::NewNode node{Op::kPlaceholder, name, id, Py_None, id};
      Ref meta = Ref::borrow(PyList_GetItem(request_.metas, i));
      nodes_[static_cast<size_t>(i)] =
          writer_.leaf(node, Ref::borrow(fx::no_args), std::move(meta));
    }
  }

  void write(const Instance& instance) {
    const std::vector<RecipeNode>& nodes = instance.recipe->nodes();
    Ref source;  // provenance record of the call, created for the first live node
    for (size_t i = 0; i < nodes.size(); ++i) {
      const size_t id = instance.first + i;
      if (live_[id] == 0) continue;
      if (!source) source = call_helper(words_.source, instance.call.get());
      const std::string_view raw = names_.text(raw_[id]);
      const std::string_view last = renamer_.node(raw);
      const StringId name = last == raw ? raw_[id] : names_.intern(last);
      const fx::NewNode made{Op::kCallFunction, nodes[i].target.get(), name, Py_None, name};
      const auto replace = [&](PyObject* original) {
        return nodes_[same_as_[instance.number_of(instance.recipe->number_of(original))]];
      };
      nodes_[id] =
          writer_.copy(made, nodes[i].original.get(), replace, meta_of(nodes[i], instance, source));
    }
    if (counts_) call_helper(words_.count, instance.made_of.get());
  }

  Ref meta_of(const RecipeNode& node, const Instance& instance, const Ref& source) {
    const Ref old = fx::node_field(instance.call.get(), fx::symbols.node_meta);
    Ref meta = Ref::steal(PyDict_New());
    for (const MetaItem& item : node.meta) {
      check(PyDict_SetItem(meta.get(), item.key.get(),
                           item_of(item, node, instance, old, source).get()));
    }
    return meta;
  }

  Ref item_of(const MetaItem& item, const RecipeNode& node, const Instance& instance,
              const Ref& old, const Ref& source) {
    switch (item.kind) {
      case MetaKind::kLiteral:
        return Ref::borrow(item.value.get());
      case MetaKind::kCopied:
        return copied(get(old, item.key));
      case MetaKind::kCopiedLiteral:
        return copied(item.value.get());
      case MetaKind::kStack:
        return Ref::borrow(get(old, item.key));
      case MetaKind::kSource: {
        return make_list(1, [&](size_t) { return Ref::borrow(source.get()); });
      }
      case MetaKind::kValue:
        return values_.make(node.value, instance.storages.get());
      case MetaKind::kSequence:
        return Ref::borrow(request_.sequence);
      case MetaKind::kCounted:
        return call_helper(words_.counted, item.value.get());
    }
    FXPRESS_CHECK(false, "an item of meta has an unknown type");
    return {};
  }

  static PyObject* get(const Ref& dict, const Ref& key) {
    PyObject* value = dict_get(dict.get(), key.get());
    if (value == nullptr) raise(PyExc_KeyError, "the meta of a node does not have %R", key.get());
    return value;
  }

  // Returns copy.copy(value).
  Ref copied(PyObject* value) {
    if (PyDict_CheckExact(value)) return Ref::steal(PyDict_Copy(value));
    if (PyTuple_CheckExact(value) || PyUnicode_CheckExact(value)) return Ref::borrow(value);
    return call_helper(words_.copied, value);
  }

  Ref call_helper(const Ref& method, PyObject* argument) {
    return call_method(request_.helper, method.get(), argument);
  }

  // As in torch, the graph's namespace contains the names that nodes had before renaming.
  void restore_names() {
    const Ref space = get_attr(request_.graph, fx::names.graph_namespace);
    const Ref used = get_attr(space.get(), fx::names.used_names);
    check(PySet_Clear(used.get()));
    for (const StringId id : raw_) {
      if (id.valid()) check(PySet_Add(used.get(), names_.string(id)));
    }
    for (const StringId id : taken_) check(PySet_Add(used.get(), names_.string(id)));
  }

  Ref all_nodes() const {
    return make_list(nodes_.size(), [&](size_t i) {
      PyObject* node = nodes_[same_as_[i]];
      return Ref::borrow(node == nullptr ? Py_None : node);
    });
  }

  const InstantiationRequest& request_;
  const Words words_;
  fx::NameWriter names_;
  fx::GraphWriter writer_;
  Renamer renamer_;
  Values values_;
  core::FlatMap known_;                           // address of a template -> index in recipes_
  std::vector<std::unique_ptr<Recipe>> recipes_;  // one per template
  std::vector<Instance> instances_;               // in the order of the calls
  std::vector<char> live_;                        // index: number of a node; whether it is live
  std::vector<StringId> raw_;     // index: number of a node; its name before renaming; last: output
  std::vector<StringId> taken_;   // names of the candidates in request_.taken
  std::vector<PyObject*> nodes_;  // index: number of a node; null if dead; borrowed
  std::vector<uint32_t> same_as_;  // index: number of a node; the node that replaces it, or itself
  std::unordered_map<uint32_t, uint32_t> computed_;  // expression -> node that computes it
  uint32_t readers_end_ = 0;  // number after the last node that reads a symbol
  bool counts_ = false;       // whether a recipe has an item kCounted
};

}  // namespace

Ref write_instances(const InstantiationRequest& request) {
  return Instantiator(request).run();
}

}  // namespace fxpress::decompose
