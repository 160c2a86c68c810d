#include "unflatten/meta.h"

#include <algorithm>
#include <charconv>

#include "fx/symbols.h"
#include "unflatten/plan/outline.h"

namespace fxpress::unflatten {

using core::NodeId;

namespace {

class MetaReader {
 public:
  explicit MetaReader(FlatProgram& program) : program_(program) {}

  void run() {
    program_.root_type = Ref::borrow(Py_None);
    program_.custom_meta.emplace_back();  // 0 is taken
    for (uint32_t i = 0; i < program_.graph.size(); ++i) {
      poll_signals(i);
      const Ref meta = fx::node_field(program_.original(NodeId(i)), fx::symbols.node_meta);
      program_.stacks.push_back(stack(NodeId(i), meta.get()));
      program_.custom.push_back(custom(meta.get()));
    }
  }

 private:
  // The number of the node's custom meta: one for each distinct value.
  uint32_t custom(PyObject* meta) {
    const Ref value = find_item(meta, fx::names.custom);
    const int is_set = value ? PyObject_IsTrue(value.get()) : 0;
    check(is_set);
    if (is_set == 0) return 0;
    for (uint32_t number = 1; number < program_.custom_meta.size(); ++number) {
      PyObject* known = program_.custom_meta[number].get();
      const int equal =
          known == value.get() ? 1 : PyObject_RichCompareBool(known, value.get(), Py_EQ);
      check(equal);
      if (equal == 1) return number;
    }
    program_.custom_meta.push_back(Ref::borrow(value.get()));
    return static_cast<uint32_t>(program_.custom_meta.size() - 1);
  }

  StackId stack(NodeId id, PyObject* meta) {
    if (program_.is_placed[id.value()] != 0) return OutlineSource::kInherits;
    PyObject* node = program_.original(id);
    Ref stack = find_item(meta, fx::names.nn_module_stack);
    if (!stack || stack.get() == Py_None) return {};
    if (!PyDict_Check(stack.get())) {
      raise(PyExc_ValueError, "nn_module_stack of node %R is no dict but %R", node, stack.get());
    }
    if (PyDict_GET_SIZE(stack.get()) == 0) return {};
    if (!PyDict_CheckExact(stack.get())) stack = in_order(stack.get());
    scopes_.clear();
    bool begins_with_marker = false;
    for (DictItems items(stack.get()); items.next();) {
      if (scopes_.empty()) begins_with_marker = is_empty_marker(items.key());
      scopes_.push_back(known_scope(node, items.key(), items.value()));
    }
    const auto same = [](const ModuleCall& a, const ModuleCall& b) {
      return a.same_call(b) && a.key == b.key;
    };
    // Most nodes have the stack of the node before them.
    const bool is_last =
        std::equal(scopes_.begin(), scopes_.end(), last_scopes_.begin(), last_scopes_.end(), same);
    if (!is_last && program_.is_exported) cut(id, node, stack.get());
    if (begins_with_marker && scopes_.size() == 1) return OutlineSource::kInherits;
    if (!is_last) {
      last_scopes_ = scopes_;
      last_ = program_.scopes.intern(scopes_);
    }
    return last_;
  }

  // Nodes of one module share the objects in their stacks.
  const ModuleCall& known_scope(PyObject* node, PyObject* key, PyObject* value) {
    const auto hash = reinterpret_cast<uintptr_t>(key) * 31 + reinterpret_cast<uintptr_t>(value);
    const auto [place, added] = places_.insert(hash, static_cast<uint32_t>(known_.size()));
    if (added) {
      known_.push_back({Ref::borrow(key), Ref::borrow(value), scope(node, key, value)});
    } else if (known_[place].key.get() != key || known_[place].value.get() != value) {
      other_ = scope(node, key, value);
      return other_;
    }
    return known_[place].scope;
  }

  // An OrderedDict has an order of its own.
  static Ref in_order(PyObject* mapping) {
    const Ref items = Ref::steal(PyMapping_Items(mapping));
    Ref dict = Ref::steal(PyDict_New());
    check(PyDict_MergeFromSeq2(dict.get(), items.get(), 1));
    return dict;
  }

  static Ref find_item(PyObject* meta, PyObject* key) {
    if (!PyDict_Check(meta)) return {};
    return Ref::borrow(dict_get(meta, key));
  }

  static bool is_empty_marker(PyObject* key) {
    const int equal = PyObject_RichCompareBool(key, fx::symbols.empty_nn_module_stack, Py_EQ);
    check(equal);
    return equal == 1;
  }

  ModuleCall scope(PyObject* node, PyObject* key, PyObject* value) {
    if (!PyTuple_Check(value) || PyTuple_GET_SIZE(value) != 2 || !PyUnicode_Check(key) ||
        !PyUnicode_Check(PyTuple_GET_ITEM(value, 0))) {
      raise(PyExc_ValueError, "nn_module_stack of node %R must map str to (path, type), not %R: %R",
            node, key, value);
    }
    ModuleCall scope;
    const std::string_view text = utf8(key);
    // A key without such an end stands for the first call: names of modules may contain an @ too,
    // as those of an unflattened module that was exported again.
    const std::string_view module = text.substr(0, text.rfind('@'));
    const bool has_number = is_call_of(text, module);
    scope.key = program_.strings.intern(has_number ? module : text);
    if (has_number && module.size() < text.size()) {
      std::from_chars(text.data() + module.size() + 1, text.data() + text.size(), scope.call);
    }
    scope.path = program_.strings.intern(utf8(PyTuple_GET_ITEM(value, 0)));
    PyObject* type = PyTuple_GET_ITEM(value, 1);
    if (program_.strings.text(scope.path).empty()) {
      scope.type = ModuleCall::kNoType;
      if (program_.root_type.get() == Py_None) program_.root_type = Ref::borrow(type);
    } else {
      scope.type = type_number(type);
    }
    return scope;
  }

  uint32_t type_number(PyObject* type) {
    if (type == Py_None) return ModuleCall::kNoType;
    const auto next = static_cast<uint32_t>(program_.types.size());
    const auto [number, added] =
        PyUnicode_Check(type) ? by_text_.insert(program_.strings.intern(utf8(type)).value(), next)
                              : by_identity_.insert(reinterpret_cast<uintptr_t>(type), next);
    if (added) program_.types.push_back(Ref::borrow(type));
    return number;
  }

  void cut(NodeId id, PyObject* node, PyObject* stack) {
    const size_t depth = ModuleCallStacks::valid_depth(scopes_, program_.strings);
    if (depth == scopes_.size()) return;
    if (program_.kinds[id.value()] == FlatKind::kOriginal) {
      CutStack cut{node, {}, scopes_.size() - depth};
      for (const ModuleCall& scope : scopes_) {
        cut.paths.emplace_back(without_call(program_.strings.text(scope.path)));
      }
      program_.cuts.push_back(std::move(cut));
    }
    Ref kept = Ref::steal(PyDict_New());
    DictItems items(stack);
    for (size_t i = 0; i < depth && items.next(); ++i) {
      check(PyDict_SetItem(kept.get(), items.key(), items.value()));
    }
    program_.cut_stacks[program_.origin[id.value()].value()] = std::move(kept);
    scopes_.resize(depth);
  }

  struct Known {
    Ref key;           // of nn_module_stack
    Ref value;         // likewise
    ModuleCall scope;  // what they say
  };

  FlatProgram& program_;
  std::vector<Known> known_;             // entries of stacks that were read
  core::FlatMap places_;                 // addresses of key and value -> place in known_
  ModuleCall other_;                     // an entry whose place was taken
  std::vector<ModuleCall> last_scopes_;  // the stack that was read last, after its cut
  StackId last_;                         // its id
  std::vector<ModuleCall> scopes_;       // of the node being read
  core::FlatMap by_text_;                // string -> number of a type
  core::FlatMap by_identity_;            // address -> number of a type
};

}  // namespace

void read_meta(FlatProgram& program) {
  MetaReader(program).run();
}

}  // namespace fxpress::unflatten
